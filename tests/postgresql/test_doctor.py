"""`lockfast doctor` reports whether a server is safe for locks."""

from __future__ import annotations

from lockfast.stores.postgresql.opening import open_maintenance
from lockfast.stores.registry import parse_url
from tests.postgresql.stepping import StoreSteps
from tests.servers.postgresql import PostgresServer


def verdicts(url: str) -> dict[str, str]:
    return {found.what: found.verdict for found in open_maintenance(parse_url(url)).examine()}


def test_a_sound_server_is_sound(server: PostgresServer) -> None:
    url = server.url()
    StoreSteps(url).close()  # so that the schema exists
    found = verdicts(url)
    assert set(found.values()) == {"good"}
    assert {"server", "durability", "replication", "pooler", "clock", "schema"} < set(found)
    assert {"rights", "tables"} < set(found)


def test_a_role_without_rights_is_found_out(server: PostgresServer) -> None:
    StoreSteps(server.url()).close()
    server.run("CREATE ROLE reader LOGIN")
    server.run("GRANT USAGE ON SCHEMA lockfast TO reader")
    server.run("GRANT SELECT ON ALL TABLES IN SCHEMA lockfast TO reader")
    assert verdicts(server.url(user="reader"))["rights"] == "bad"
    assert verdicts(server.url(user="reader", schema="nowhere"))["schema"] == "bad"


def test_a_server_that_forgets_is_found_out() -> None:
    with PostgresServer("fsync=off", "synchronous_commit=off") as careless:
        assert verdicts(careless.url())["durability"] == "bad"
