"""The schema: who creates it, how it is migrated, and the least privileges a role needs."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockfast
from lockfast.cli import main
from lockfast.errors import AccessDeniedError, StoreMisconfiguredError
from lockfast.stores.postgresql.schema import VERSION, creation, statements
from tests.servers.postgresql import PostgresServer

TTL = 30.0
FILLFACTORS = (
    "SELECT count(*) FROM pg_class WHERE relnamespace = 'lockfast'::regnamespace"
    " AND relkind = 'r' AND relname <> 'floors' AND reloptions::text LIKE '%%fillfactor%%'"
)


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server without our schema."""
    with PostgresServer() as started:
        yield started


def granted_rights() -> list[str]:
    """Return the statements on the page, for the role `app`."""
    page = Path(__file__).parents[2] / "docs" / "stores" / "postgresql.md"
    (block,) = re.findall(r"```sql\n(GRANT USAGE.*?)```", page.read_text("utf-8"), re.DOTALL)
    return statements(block)


def test_a_role_without_rights_is_told_what_to_run(own_server: PostgresServer) -> None:
    """It may not create the schema; the owner of the database runs the printed SQL."""
    own_server.run("CREATE ROLE app LOGIN")
    url = own_server.url(user="app")

    def acquire() -> None:
        with lockfast.connect(url) as client:
            client.lock("a").acquire().release()

    with pytest.raises(StoreMisconfiguredError, match="lockfast schema postgresql"):
        acquire()
    own_server.run(creation())
    with pytest.raises(AccessDeniedError, match="rights"):
        acquire()


def test_the_rights_on_the_page_are_enough_and_none_is_too_many(
    own_server: PostgresServer,
) -> None:
    own_server.run("CREATE ROLE app LOGIN")
    own_server.run(creation())
    rights = granted_rights()
    for right in rights:
        own_server.run(right)
    url = own_server.url("one", user="app")
    _use_everything(url)
    assert main(["doctor", url]) == 0
    assert main(["doctor", "--repair", url]) == 0
    assert main(["doctor", "--raise-epoch", url]) == 0
    assert main(["doctor", "--dump", url]) == 0
    assert main(["reset", "one", "--url", url, "--yes"]) == 0
    for right in rights:
        what, where = re.fullmatch(r"GRANT (.*?) ON (.*) TO app", right).groups()  # type: ignore[union-attr]
        for single in what.split(", "):
            own_server.run(f"REVOKE {single} ON {where} FROM app")
            with pytest.raises((StoreMisconfiguredError, AssertionError)):
                _use_everything(url)
                assert main(["doctor", url]) == 0
            own_server.run(f"GRANT {single} ON {where} TO app")


def _use_everything(url: str) -> None:
    with lockfast.connect(url, ttl=TTL) as client, lockfast.connect(url, ttl=TTL) as other:
        with client.lock("a"), client.rwlock("b").read(), client.semaphore("c", limit=2):
            assert other.lock("a").try_acquire() is None
        with client.lock("kept", retain=True), client.all("x", "y"), client.tree("t/u").write():
            pass
        assert next(iter(client.sessions())).owner
        client.revoke("a", reason="none is held")


def test_first_users_create_the_schema_once(own_server: PostgresServer) -> None:
    failures: list[BaseException] = []
    ready = threading.Barrier(4)

    def use() -> None:
        try:
            ready.wait(20)
            with lockfast.connect(own_server.url("one"), connect_timeout=30) as client:
                client.lock("a").acquire(timeout=30).release()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert own_server.run("SELECT version FROM lockfast.meta") == [(VERSION,)]


def test_an_older_schema_is_migrated_while_locks_are_held(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client of the older version keeps working; its lock stays held and is handed over."""
    own_server.run(creation(version=1))
    url = own_server.url("one")
    with monkeypatch.context() as older, lockfast.connect(url, ttl=TTL) as old:
        older.setattr("lockfast.stores.postgresql.migration.VERSION", 1)
        held = old.lock("orders/42").acquire()
        older.undo()
        assert own_server.run(FILLFACTORS) != [(0,)]
        with lockfast.connect(url, ttl=TTL) as new:
            assert new.lock("orders/42").try_acquire() is None
            assert own_server.run("SELECT version FROM lockfast.meta") == [(VERSION,)]
            assert own_server.run(FILLFACTORS) == [(0,)]
            held.check()
            held.release()
            with new.lock("orders/42").acquire(timeout=TTL) as lease:
                assert lease.token > held.token
            with old.lock("orders/43"):
                pass


def test_a_role_that_may_not_migrate_is_told_what_to_run(
    own_server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    own_server.run("CREATE ROLE app LOGIN")
    own_server.run(creation(version=1))
    for right in granted_rights():
        own_server.run(right)
    url = own_server.url(user="app")
    command = ["schema", "postgresql", "--since", "1"]
    with lockfast.connect(url) as client:
        with pytest.raises(StoreMisconfiguredError, match=" ".join(["lockfast", *command])):
            client.lock("a").acquire()
        assert main(["doctor", url]) == 2
        capsys.readouterr()
        assert main(command) == 0
        own_server.run(capsys.readouterr().out)
        client.lock("a").acquire().release()
    assert main(["doctor", url]) == 0


def test_a_newer_schema_is_refused(own_server: PostgresServer) -> None:
    own_server.run(creation())
    own_server.run("UPDATE lockfast.meta SET version = version + 1")
    with lockfast.connect(own_server.url()) as client:
        with pytest.raises(StoreMisconfiguredError, match="upgrade Lockfast"):
            client.lock("a").acquire()


def test_a_version_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "postgresql", "--since", str(VERSION)]) == 2
    assert "--since" in capsys.readouterr().err


def test_migrated_and_new_schemas_are_alike(own_server: PostgresServer) -> None:
    own_server.run(creation("fresh"))
    own_server.run(creation("moved", version=1))
    own_server.run(creation("moved", since=1))

    def shape(schema: str) -> list[object]:
        return own_server.run(
            "SELECT c.relname, c.relkind, c.reloptions, a.attname, a.atttypid, a.attnotnull"
            " FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0"
            " WHERE c.relnamespace = %s::regnamespace ORDER BY 1, 4",
            schema,
        )

    assert shape("fresh") == shape("moved")
