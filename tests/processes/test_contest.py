"""The judge of a contest detects the violations it exists to detect."""

from __future__ import annotations

import pytest

from tests.processes.contest import judge


@pytest.mark.parametrize(
    ("book", "wrong"),
    [
        ("in 1|in 2|out 1 held|out 2 held", "2 came while 1"),
        ("in 2|out 2 held|in 1|out 1 held", "1 came after 2"),
        ("in 1|out 1 held|in 1|out 1 held", "given twice"),
    ],
)
def test_the_judge_sees(book: str, wrong: str) -> None:
    with pytest.raises(AssertionError, match=wrong):
        judge(book.replace("|", "\n"))


def test_the_judge_forgives_those_who_know_that_they_have_lost() -> None:
    assert judge("in 1\nin 2\nout 2 held\nout 1 lost") == 1
