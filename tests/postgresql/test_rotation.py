"""A password that is changed while a client holds a lease."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lockfast
from tests.servers.postgresql import PostgresServer
from tests.servers.rotation import holds_through_rotation, holds_through_rotation_of_a_file


@pytest.fixture(scope="module")
def strict() -> Iterator[PostgresServer]:
    """A server that asks one role for a password."""
    with PostgresServer() as server:
        rules = server.data / "pg_hba.conf"
        rules.write_text(f"host all rotating 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        server.run("SELECT pg_reload_conf()")
        server.run("CREATE ROLE rotating LOGIN")
        server.run("GRANT CREATE ON DATABASE postgres TO rotating")
        yield server


@pytest.fixture
def rotating(strict: PostgresServer) -> PostgresServer:
    strict.run("ALTER ROLE rotating PASSWORD 'first'")
    return strict


def rotate(server: PostgresServer) -> None:
    """Change the password, and close every connection that used the old one."""
    server.run("ALTER ROLE rotating PASSWORD 'second'")
    closed = server.run(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'rotating'"
    )
    assert closed


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
def test_a_lease_survives_a_new_password(rotating: PostgresServer, late: bool) -> None:
    url = rotating.url(user="rotating")
    holds_through_rotation(url, ["first", "second"], lambda: rotate(rotating), late=late)


def test_a_lease_survives_a_new_password_in_a_file(
    rotating: PostgresServer, tmp_path: Path
) -> None:
    url = rotating.url(user="rotating")
    holds_through_rotation_of_a_file(url, tmp_path / "password", lambda: rotate(rotating))


def test_the_old_password_is_refused(rotating: PostgresServer) -> None:
    """Otherwise the tests above would prove nothing."""
    rotating.run("ALTER ROLE rotating PASSWORD 'second'")
    with pytest.raises(lockfast.AccessDeniedError, match="password"):
        lockfast.connect(rotating.url(user="rotating"), password=lambda: "first", check=True)
