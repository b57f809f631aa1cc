"""The address of a PostgreSQL server and its credentials, parsed from a store URL."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from lockfast.errors import StoreMisconfiguredError
from lockfast.stores.passwords import Password
from lockfast.stores.registry import StoreUrl

SCHEMA: Final = "lockfast"
LIBPQ_OPTIONS: Final = (
    "host", "port", "user", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl",
    "target_session_attrs", "application_name", "passfile", "service", "gssencmode",
    "channel_binding",
)  # fmt: skip
"""Options of the URL that are passed to libpq."""
CONNECTIONS_MAX: Final = 16


class Address(NamedTuple):
    """One database, one schema in it, one namespace in that."""

    label: str
    parameters: tuple[tuple[str, str], ...]
    """For libpq; may contain a password."""
    schema: str = SCHEMA
    namespace: str = ""
    listen: str = "same"
    """Where to LISTEN: at the `same` address, not at all (`off`), or at a direct `host:port` that
    bypasses a pooler."""
    connections_max: int = CONNECTIONS_MAX
    password: Password = ""
    """Used instead of a password among the parameters."""

    def __repr__(self) -> str:
        return f"<Address {self.label}>"

    def for_listening(self) -> Address:
        """Return the address at which notifications arrive."""
        if self.listen in ("same", "off"):
            return self
        host, _, port = self.listen.rpartition(":")
        changed = {**dict(self.parameters), "host": host.strip("[]"), "port": port}
        return self._replace(parameters=tuple(changed.items()))


def parse(url: StoreUrl) -> Address:
    """Return the address in a store URL. Raises StoreMisconfiguredError if it is malformed."""
    url.refuse_other_options(*LIBPQ_OPTIONS, "schema", "listen", "connections")
    schema = url.options.get("schema", SCHEMA)
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,50}", schema):
        raise StoreMisconfiguredError(
            url.label,
            f"schema={schema!r} is not a valid schema name",
            "use up to 51 small letters, digits and _, not beginning with a digit",
        )
    return Address(
        url.label,
        tuple(_parameters(url).items()),
        schema,
        url.namespace,
        _listen(url),
        _connections(url),
        url.password or "",
    )


def _parameters(url: StoreUrl) -> dict[str, str]:
    credentials, _, place = url.location.rpartition("@")
    user, _, password = credentials.partition(":")
    servers, _, database = place.partition("/")
    parameters = {"dbname": database, "user": user, "password": password}
    hosts, ports = [], []
    for server in servers.split(",") if servers else ():
        found = re.fullmatch(r"(\[[0-9a-fA-F:.%a-z]+\]|[^:\[\]/]*)(?::(\d{1,5}))?", server)
        if found is None or int(found[2] or 1) not in range(1, 65536):
            raise StoreMisconfiguredError(
                url.label,
                "does not name a server",
                "write postgresql://user@host:5432/database, or several hosts joined by commas",
            )
        hosts.append(found[1].strip("[]"))
        ports.append(found[2] or "")
    parameters |= {"host": ",".join(hosts), "port": ",".join(ports).strip(",")}
    parameters |= {name: url.options[name] for name in LIBPQ_OPTIONS if name in url.options}
    parameters.setdefault("application_name", "lockfast")
    if "," in parameters["host"]:
        # Of several hosts, use the one that accepts writes.
        parameters.setdefault("target_session_attrs", "read-write")
    return {name: value for name, value in parameters.items() if value}


def _listen(url: StoreUrl) -> str:
    listen = url.options.get("listen", "same")
    if listen not in ("same", "off") and not re.fullmatch(r"[^/@?]+:\d{1,5}", listen):
        raise StoreMisconfiguredError(
            url.label,
            f"listen={listen!r} is not an address",
            "write listen=host:5432 (the server itself, not a pooler), or listen=off",
        )
    return listen


def _connections(url: StoreUrl) -> int:
    text = url.options.get("connections", str(CONNECTIONS_MAX))
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise StoreMisconfiguredError(
            url.label, f"connections={text!r} is out of range", "write a number from 1 to 1000"
        )
    return int(text)
