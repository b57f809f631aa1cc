"""A password with a slash or an @, or one given as an option, is not shown."""

from __future__ import annotations

import pytest

from lockfast.stores.registry import label_of


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("redis://me:pa/ss@host/0", "redis://me:***@host/0"),
        ("redis://me:p@ss@host/0", "redis://me:***@host/0"),
        ("redis://me:pa?ss@host/0", "redis://me:***@host/0"),
        ("redis:me:pass@host", "redis:***@host"),
        ("redis://host/0?password=pass&x=1", "redis://host/0?password=***&x=1"),
        ("sqlite:///home/me@work/locks.db", "sqlite:///home/me@work/locks.db"),
    ],
)
def test_it_is_left_out_of_the_label(url: str, label: str) -> None:
    assert label_of(url) == label
