"""Which messages wake a session, and how: trusted wakes are delivered, hints are returned."""

from __future__ import annotations

from lockfast.core.commands import (
    WAKE_ENDED,
    WAKE_EVENTS,
    WAKE_GRANTED,
    WAKE_LOOK,
    WAKE_WANTED,
    Wake,
)
from lockfast.stores.redis.session_wakes import SessionWakes

TOKEN = 17


class Heard:
    """The wakes of one session, and messages as the scripts publish them."""

    def __init__(self, session: str = "s", *, confirmed: bool = False) -> None:
        self.delivered: list[Wake] = []
        self.wakes = SessionWakes(session, self.delivered.append, confirmed=confirmed)

    def message(self, what: str, *, kind: str = "message", code: str | None = None) -> list[str]:
        said = f"s 1 {what} {TOKEN}"
        return [kind, "channel", f"{said} {self.wakes._code(said) if code is None else code}"]

    def wake(self, what: str, token: int = TOKEN) -> Wake:
        return Wake(self.wakes.inbox, "s", 1, what, token)


def test_every_session_has_its_own_secret() -> None:
    secrets = {Heard().wakes.inbox for _ in range(100)}
    assert len(secrets) == 100
    assert min(map(len, secrets)) == 32


def test_a_grant_is_delivered_after_the_wish_of_others() -> None:
    heard = Heard()
    assert heard.wakes.hear_all(map(heard.message, (WAKE_GRANTED, WAKE_WANTED))) == []
    assert heard.delivered == [heard.wake(WAKE_WANTED), heard.wake(WAKE_GRANTED)]


def test_hints_are_returned_and_not_delivered() -> None:
    heard = Heard()
    hints = [WAKE_LOOK, WAKE_ENDED, WAKE_EVENTS]
    assert heard.wakes.hear_all(map(heard.message, hints)) == [*map(heard.wake, hints)]
    assert heard.delivered == []


def test_a_grant_that_replicas_must_confirm_is_only_a_hint() -> None:
    heard = Heard(confirmed=True)
    assert heard.wakes.hear_all([heard.message(WAKE_GRANTED)]) == [heard.wake(WAKE_LOOK)]
    assert heard.delivered == []


def test_only_messages_are_heard() -> None:
    heard = Heard()
    kinds = ("subscribe", "unsubscribe", "psubscribe", "pong")
    others = [heard.message(WAKE_GRANTED, kind=kind) for kind in kinds]
    assert heard.wakes.hear_all([*others, [], "message", None, ["message", "channel", 1]]) == []
    assert heard.delivered == []


def test_a_server_hears_all_sessions_and_looks_after_those_of_other_servers() -> None:
    heard = Heard("")
    messages = [
        heard.message(WAKE_GRANTED, kind="pmessage"),
        heard.message(WAKE_GRANTED, kind="pmessage", code="0" * 40),
    ]
    assert heard.wakes.hear_all(messages) == [heard.wake(WAKE_LOOK, token=0)]
    assert heard.delivered == [heard.wake(WAKE_GRANTED)]
