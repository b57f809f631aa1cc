"""The outcomes that `once` stores were listed as locks, under names that no user can give."""

from __future__ import annotations

import pytest

import lockfast
from lockfast.core.commands import Listing, ListingReply
from lockfast.flow import admin
from lockfast.runtimes.threads import run


def test_outcomes_of_once_are_not_listed() -> None:
    with lockfast.connect("memory://internal-names") as client:

        @client.once("nightly", at_least=60, at_most=60, wait=True)
        def job() -> int:
            return 1

        assert job() == 1
        stored = run(client._core.ask(Listing("once", "", "", 100), ListingReply))
        assert len(stored.resources) > 1, "nothing to hide: this test shows nothing"
        assert [lock.name for lock in client.list(kind="once")] == ["nightly"]


def test_a_page_that_ends_with_one_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "PAGE", 1)
    with lockfast.connect("memory://internal-pages") as client:
        for name in ("a", "b"):
            client.once(name, at_least=60, at_most=60, wait=True)(lambda: None)()
        assert [lock.name for lock in client.list(kind="once")] == ["a", "b"]
