"""doctor --repair, --dump, --raise-epoch and reset, on rows damaged by hand."""

from __future__ import annotations

import pytest

import lockfast
from lockfast.cli import main
from lockfast.errors import LeaseLostError
from lockfast.stores.postgresql.address import parse
from lockfast.stores.registry import parse_url
from tests.servers.postgresql import PostgresServer

TTL = 30.0


@pytest.fixture
def url(server: PostgresServer) -> str:
    url = server.url()
    with lockfast.connect(url) as client:
        client.lock("first").acquire().release()  # so that the schema exists
    return url


def namespace_of(url: str) -> str:
    return parse(parse_url(url)).namespace


def test_intact_rows_of_every_kind_pass(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with lockfast.connect(url, ttl=TTL) as client:
        with (
            client.lock("plain"),
            client.rwlock("read").read(),
            client.rwlock("read").read(),
            client.semaphore("permits", limit=5).acquire(permits=2),
            client.tree("a/b/c").write(),
            client.all("x", "y"),
            client.lock("kept", retain=True),
        ):
            assert main(["doctor", url]) == 0
            assert main(["doctor", "--repair", url]) == 0
    assert "rebuilt" not in capsys.readouterr().out


def test_a_repair_rebuilds_what_follows_from_claims(
    server: PostgresServer, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The holder keeps its lock, others stay out, and the lock can be handed over again."""
    with lockfast.connect(url, ttl=TTL) as holder, lockfast.connect(url, ttl=TTL) as other:
        held = holder.lock("orders/42").acquire()
        readers = [holder.rwlock("read").read().acquire() for _ in range(2)]
        for table in ("resources", "lines"):
            server.run(f"DELETE FROM lockfast.{table} WHERE namespace = %s", namespace_of(url))
        assert main(["doctor", url]) == 2
        assert "locks that differ from their claims: 2" in capsys.readouterr().out
        assert main(["doctor", "--repair", url]) == 0
        assert "rebuilt 2 locks" in capsys.readouterr().out
        assert other.lock("orders/42").try_acquire() is None
        assert other.rwlock("read").write().try_acquire() is None
        for lease in readers:
            lease.release()
        held.check()
        held.release()
        with other.lock("orders/42").acquire(timeout=TTL) as lease:
            assert lease.token > held.token
        assert main(["doctor", url]) == 0


def test_ended_sessions_are_not_counted(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with lockfast.connect(url, ttl=TTL) as client, client.lock("a"):
        with lockfast.connect(url, ttl=TTL) as other, other.lock("b"):
            pass
        assert main(["doctor", url]) == 0
    assert "1 session, 1 claim, 1 lock in use" in capsys.readouterr().out


def test_of_two_holders_the_younger_is_revoked(
    server: PostgresServer, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lock's row was deleted by hand, and the lock was granted again."""
    with lockfast.connect(url, ttl=TTL) as holder, lockfast.connect(url, ttl=TTL) as other:
        held = holder.lock("orders/42").acquire()
        server.run("DELETE FROM lockfast.resources WHERE namespace = %s", namespace_of(url))
        second = other.lock("orders/42").acquire()
        assert main(["doctor", "--repair", url]) == 0
        assert "revoked 1 claim of" in capsys.readouterr().out
        assert second.lost.wait(TTL)
        held.check()
        held.release()


def test_claims_without_a_session_are_deleted(
    server: PostgresServer, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with lockfast.connect(url, ttl=TTL) as holder, lockfast.connect(url, ttl=TTL) as other:
        held = holder.lock("orders/42").acquire()
        server.run("DELETE FROM lockfast.sessions WHERE namespace = %s", namespace_of(url))
        assert main(["doctor", url]) == 2
        assert main(["doctor", "--repair", url]) == 0
        assert "deleted 1 claim without a session" in capsys.readouterr().out
        with other.lock("orders/42").acquire(timeout=TTL) as lease:
            assert lease.token > held.token
        assert held.lost.wait(TTL)


def test_a_reset_ends_sessions_and_tokens_keep_rising(server: PostgresServer, url: str) -> None:
    with lockfast.connect(url, ttl=TTL) as holder, lockfast.connect(url, ttl=TTL) as other:
        held = holder.lock("orders/42").acquire()
        assert main(["reset", namespace_of(url), "--url", url, "--yes"]) == 0
        with other.lock("orders/42").acquire(timeout=TTL) as lease:
            assert lease.token > held.token
        # Notified at once: its next keep-alive is ten seconds away.
        assert held.lost.wait(TTL / 4)
        with pytest.raises(LeaseLostError):
            held.check()


def test_the_epoch_is_raised_after_a_restore(
    server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A restore of yesterday's backup: epoch and sequence are those of yesterday."""
    url = server.url(schema="restored")
    with lockfast.connect(url, ttl=TTL) as client:
        with client.lock("orders/42") as lease:
            before = lease.token
        server.run("UPDATE restored.meta SET epoch = epoch - 86400000000")
        with client.lock("orders/42") as lease:
            assert lease.token < before
        assert main(["doctor", "--raise-epoch", url]) == 0
        assert "raised by 864" in capsys.readouterr().out
        with client.lock("orders/42") as lease:
            assert lease.token > before


def test_a_dump_shows_everything_but_secrets(
    server: PostgresServer, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with lockfast.connect(url, ttl=TTL) as client, client.lock("orders/42"):
        assert main(["doctor", "--dump", url]) == 0
        said = capsys.readouterr().out
        ((inbox,),) = server.run(
            "SELECT inbox FROM lockfast.sessions WHERE namespace = %s AND ended = ''",
            namespace_of(url),
        )
    assert "orders/42" in said
    assert inbox.split(" ")[0] in said
    assert inbox.split(" ")[1] not in said


def test_a_database_without_the_schema_is_not_changed(
    server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = server.url(schema="nowhere")
    for arguments in (["--repair"], ["--dump"], ["--raise-epoch"]):
        assert main(["doctor", *arguments, url]) == 2
        assert "has no schema 'nowhere'" in capsys.readouterr().err
    assert server.run("SELECT 1 FROM pg_namespace WHERE nspname = 'nowhere'") == []
