"""Log lines: texts, levels, fields, and never a password."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

import lockfast
from lockfast import events as e
from lockfast import logs
from lockfast.flow.log_lines import line_of

SOURCE = e.Source("redis://:***@host", "redis", "me")
SUBJECT = e.Subject("lock", "orders/42", "exclusive", "thread-1")
CLAIM = (1, SOURCE, SUBJECT, "s-1", 3, 17)

EVERY_EVENT: list[tuple[Any, int, str]] = [
    (e.AcquireBegun(1, SOURCE, SUBJECT, None), logging.DEBUG, "acquiring 'orders/42'"),
    (
        e.AcquireQueued(1, SOURCE, SUBJECT, "s-1", 3, 2, ("a",), ()),
        logging.DEBUG,
        "waiting for 'orders/42' at position 2 behind a",
    ),
    (
        e.AcquireGranted(*CLAIM, 250_000, True, 2),
        logging.DEBUG,
        "acquired 'orders/42' (token 17) after 250.0 ms",
    ),
    (
        e.AcquireGaveUp(1, SOURCE, SUBJECT, "timeout", 5, True, "too late"),
        logging.INFO,
        "did not acquire 'orders/42': too late",
    ),
    (
        e.LeaseReleased(*CLAIM, 2_000_000),
        logging.DEBUG,
        "released 'orders/42' (token 17) after 2.0 s",
    ),
    (
        e.LeaseConverted(*CLAIM, "update", 16, 1),
        logging.DEBUG,
        "converted 'orders/42' (token 17) from update",
    ),
    (
        e.LeaseUncertain(*CLAIM, 3_000_000),
        logging.INFO,
        "keep-alive failed; 'orders/42' (token 17) ends in 3.0 s",
    ),
    (
        e.LeaseLost(*CLAIM, "expired", "not renewed", 9_000_000),
        logging.ERROR,
        "lost 'orders/42' (token 17) after 9.0 s: not renewed",
    ),
    (
        e.LeaseRevoked(*CLAIM, "root", "stuck"),
        logging.WARNING,
        "root revoked 'orders/42' (token 17): stuck",
    ),
    (e.LockRetained(*CLAIM), logging.DEBUG, "retaining 'orders/42' (token 17)"),
    (
        e.RetainedReturned(1, SOURCE, SUBJECT, "s-1", 3, 5),
        logging.DEBUG,
        "no longer retaining 'orders/42'",
    ),
    (
        e.SessionOpened(1, SOURCE, "s-1", 30_000),
        logging.INFO,
        "opened session s-1 with a TTL of 30 s",
    ),
    (
        e.SessionRenewed(1, SOURCE, "s-1", 700, 1, 0),
        logging.DEBUG,
        "renewed session s-1 in 0.7 ms",
    ),
    (
        e.KeepAliveFailed(1, SOURCE, "s-1", 5, 5, "cut"),
        logging.INFO,
        "keep-alive of session s-1 failed: cut",
    ),
    (
        e.SessionEnded(1, SOURCE, "s-1", "revoked", "root"),
        logging.INFO,
        "session s-1 has ended: revoked (by root)",
    ),
    (
        e.StoreUnreachable(1, SOURCE, 1, 0, "cut"),
        logging.WARNING,
        "redis://:***@host is unreachable: cut",
    ),
    (
        e.StoreUnreachable(1, SOURCE, 70, 60_000_000, "cut"),
        logging.WARNING,
        "redis://:***@host has been unreachable for 60.0 s, 70 requests failed: cut",
    ),
    (
        e.StoreBack(1, SOURCE, 70, 61_000_000),
        logging.WARNING,
        "redis://:***@host is reachable again after 61.0 s, 70 requests failed",
    ),
    (
        e.StoreBack(1, SOURCE, 1, 1_500),
        logging.WARNING,
        "redis://:***@host is reachable again after 1.5 ms, 1 request failed",
    ),
    (e.DeadlockFound(1, SOURCE, "s-1", ("a", "b"), "me"), logging.WARNING, "deadlock: a; b"),
    (
        e.GuardAdmitted(1, "redis", "orders/42", 17),
        logging.DEBUG,
        "redis guard admitted token 17 to 'orders/42'",
    ),
    (
        e.GuardRefused(1, "redis", "orders/42", 16, 17),
        logging.WARNING,
        "redis guard refused token 16 for 'orders/42': 17 was admitted before",
    ),
]


@pytest.mark.parametrize(("event", "level", "text"), EVERY_EVENT)
def test_every_event_has_its_line(event: Any, level: int, text: str) -> None:
    line = line_of(event)
    assert (line.level, line.text) == (level, text)
    # None of the fields may be an attribute that a LogRecord has itself.
    record = logging.getLogger("lockfast").makeRecord(
        "lockfast", level, "", 0, "%s", (text,), None, extra=line.fields
    )
    assert json.loads(logs.JsonFormatter().format(record))["event"] == type(event).__name__


def test_no_event_is_left_out() -> None:
    assert {type(event) for event, _, _ in EVERY_EVENT} == set(e.Event.__args__)


def test_fields_of_a_granted_lock() -> None:
    line = line_of(e.AcquireGranted(*CLAIM, 250_000, True, 2))
    assert line.fields["lock"] == "orders/42"
    assert line.fields["token"] == 17
    assert line.fields["session"] == "s-1"
    assert line.fields["owner"] == "me"
    assert line.fields["wait_ms"] == 250.0


def test_a_lost_lease_is_logged_without_being_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with lockfast.connect("memory://", owner="me") as client, caplog.at_level(0, "lockfast"):
        lease = client.lock("a").acquire()
        client.revoke("a", reason="stuck")
        assert lease.lost.wait(30)
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "stuck (by me)" in record.getMessage()
    assert vars(record)["lock"] == "a"


def test_everything_else_is_logged_once_it_is_enabled(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "lockfast"):
        with lockfast.connect("memory://") as client:
            with client.lock("quiet"):
                pass
            assert not caplog.records
            with logs.enable() as subscription:
                with client.lock("a"):
                    pass
                assert subscription.flush()
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == "acquiring 'a'"
    assert messages[1].startswith("acquired 'a' (token ")
    assert messages[2].startswith("released 'a' (token ")


def test_a_password_reaches_no_line_and_no_event(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[object] = []
    with caplog.at_level(logging.DEBUG, "lockfast"), lockfast.observe(seen.append), logs.enable():
        client = lockfast.connect("redis://:s3cret@127.0.0.1:1", connect_timeout=0.2)
        with pytest.raises(lockfast.StoreUnavailableError):
            client.lock("a").acquire()
        client.close()
    assert "unreachable" in caplog.text
    assert "s3cret" not in caplog.text
    assert "s3cret" not in repr(seen)
    formatted = [logs.JsonFormatter().format(record) for record in caplog.records]
    assert "s3cret" not in "".join(formatted)
