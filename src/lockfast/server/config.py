"""The configuration of a server, from a TOML file and the command line.

[server]
hosts = ["locks.example"]          # what clients may call it; loopback is always allowed

[tls]
cert = "/etc/lockfast/cert.pem"
key = "/etc/lockfast/key.pem"
client_ca = "/etc/lockfast/ca.pem" # clients may prove who they are by a certificate

[jwt]
issuer = "https://id.example"
audience = "lockfast"
jwks_url = "https://id.example/keys"

[[rights]]
principal = "alice"
prefix = "orders"
allow = ["read", "acquire"]

[quotas.default]
requests_per_second = 500
[quotas.principals.batch]
claims = 100000
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from lockfast.errors import StoreMisconfiguredError
from lockfast.server.quotas import Quotas
from lockfast.server.rights import VERBS, Grant, RightsTable
from lockfast.stores.registry import DEFAULT_NAMESPACE

LOCAL: Final = "local"
"""The principal of the token that is created at the first start."""


class Tls(NamedTuple):
    cert: str
    key: str
    client_ca: str = ""
    require_client: bool = False


class Jwt(NamedTuple):
    issuer: str
    audience: str
    jwks_url: str
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    principal: str = "sub"
    """The claim that names the principal."""
    ca: str = ""
    """A CA bundle for the JWKS URL."""


class Proxies(NamedTuple):
    """Reverse proxies that authenticate clients and name them in a header."""

    peers: tuple[str, ...] = ()
    header: str = ""


class Policy(NamedTuple):
    """The settings that are read again on SIGHUP."""

    rights: RightsTable
    default_quotas: Quotas = Quotas()
    quotas: Mapping[str, Quotas] = {}

    def quotas_of(self, principal: str) -> Quotas:
        return self.quotas.get(principal, self.default_quotas)


class Config(NamedTuple):
    policy: Policy
    hosts: tuple[str, ...] = ()
    tls: Tls | None = None
    jwt: Jwt | None = None
    proxies: Proxies = Proxies()
    audit_log: str = ""


FULL: Final = frozenset(VERBS)
LOCAL_ONLY: Final = Policy(RightsTable([Grant(LOCAL, "*", "", FULL)]))
"""Without a rights file, only the principal of the first token may do anything."""


def read_config(path: str) -> Config:
    """Read a configuration file. Raises StoreMisconfiguredError for anything unexpected."""
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise StoreMisconfiguredError(path, f"cannot be read ({error.strerror})") from None
    except tomllib.TOMLDecodeError as error:
        raise StoreMisconfiguredError(path, f"is not TOML ({error})") from None
    reader = _Reader(path)
    reader.known(found, "server", "tls", "jwt", "proxies", "rights", "quotas")
    server = reader.table(found, "server")
    reader.known(server, "hosts", "audit_log")
    rights = found.get("rights")
    policy = LOCAL_ONLY
    if rights is not None:
        if not isinstance(rights, list):
            raise reader.wrong("rights has to be a list of [[rights]] tables")
        policy = Policy(RightsTable([reader.grant(entry) for entry in rights]))
    quotas = reader.table(found, "quotas")
    reader.known(quotas, "default", "principals")
    default = reader.quotas(reader.table(quotas, "default"), Quotas())
    each = {
        name: reader.quotas(values, default)
        for name, values in reader.table(quotas, "principals").items()
    }
    proxies = reader.table(found, "proxies")
    reader.known(proxies, "peers", "header")
    return Config(
        policy._replace(default_quotas=default, quotas=each),
        tuple(reader.texts(server, "hosts")),
        reader.made(Tls, found, "tls"),
        reader.made(Jwt, found, "jwt"),
        Proxies(tuple(reader.texts(proxies, "peers")), reader.text(proxies, "header")),
        reader.text(server, "audit_log"),
    )


class _Reader:
    """Reads tables strictly: a misspelt right must not be ignored silently."""

    def __init__(self, path: str) -> None:
        self._path = path

    def wrong(self, what: str) -> StoreMisconfiguredError:
        return StoreMisconfiguredError(self._path, what, "see the server page of the docs")

    def known(self, table: Mapping[str, Any], *names: str) -> None:
        for name in table:
            if name not in names:
                raise self.wrong(f"{name!r} is none of {', '.join(names)}")

    def table(self, parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        found = parent.get(name, {})
        if not isinstance(found, dict):
            raise self.wrong(f"{name} has to be a table")
        return found

    def text(self, table: Mapping[str, Any], name: str) -> str:
        found = table.get(name, "")
        if not isinstance(found, str):
            raise self.wrong(f"{name} has to be a string")
        return found

    def texts(self, table: Mapping[str, Any], name: str) -> list[str]:
        found = table.get(name, [])
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise self.wrong(f"{name} has to be a list of strings")
        return found

    def grant(self, entry: Any) -> Grant:
        if not isinstance(entry, dict):
            raise self.wrong("rights has to be a list of [[rights]] tables")
        self.known(entry, "principal", "namespace", "prefix", "allow")
        principal, verbs = self.text(entry, "principal"), self.texts(entry, "allow")
        if not principal or not verbs:
            raise self.wrong("each [[rights]] needs principal and allow")
        for verb in verbs:
            if verb not in VERBS:
                raise self.wrong(f"allow has {verb!r}, which is none of {', '.join(VERBS)}")
        namespace = self.text(entry, "namespace")
        if namespace == DEFAULT_NAMESPACE:
            namespace = ""
        return Grant(principal, namespace, self.text(entry, "prefix"), frozenset(verbs))

    def quotas(self, values: Any, base: Quotas) -> Quotas:
        if not isinstance(values, dict):
            raise self.wrong("quotas has to have tables")
        self.known(values, *Quotas._fields)
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise self.wrong(f"the quota {name} has to be a number from 0 on")
        made: Quotas = base._replace(**values)
        return made

    def made(self, kind: Any, found: Mapping[str, Any], name: str) -> Any:
        if name not in found:
            return None
        table = self.table(found, name)
        self.known(table, *kind._fields)
        for field in kind._fields:
            if field not in kind._field_defaults and field not in table:
                raise self.wrong(f"[{name}] needs {field}")
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
        return kind(**values)
