"""Accept clients of other libraries in place of a URL.

Lockfast needs its own connections: one for the keeper's thread, one for wakes, and none with
another library's retries or response callbacks. So it connects with the *settings* of the given
client. Clients with settings that Lockfast could not honour are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from lockfast.errors import UnsupportedError

_OF_REDIS: Final = frozenset(
    {"host", "port", "db", "username", "password", "path", "credential_provider"}
    | {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"}
)
"""Settings for where and as whom redis-py connects. The others concern redis-py itself."""
_OF_REDIS_REFUSED: Final = ("ssl_ca_path", "ssl_ca_data", "ssl_password", "ssl_min_version")
_OF_LIBPQ: Final = frozenset({"host", "port", "user", "password", "dbname"})


class Found(NamedTuple):
    """A URL without a password, and a function that returns the password."""

    url: str
    password: Callable[[], str] | None


def settings_of(client: object) -> Found:
    """Return the settings of a client. Raises UnsupportedError if its settings are not known."""
    libraries = {kind.__module__.partition(".")[0] for kind in type(client).__mro__}
    any_client: Any = client
    if libraries & {"redis", "valkey"}:
        return _of_redis(any_client)
    if "psycopg_pool" in libraries:
        return _of_pool(any_client)
    if "psycopg" in libraries:
        given = any_client.info.get_parameters()
        return _of_libpq(client, {**given, "password": any_client.info.password})
    if "sqlalchemy" in libraries and hasattr(client, "url"):
        return _of_sqlalchemy(any_client)
    if "etcd3gw" in libraries:
        return _of_etcd3gw(any_client)
    if libraries & {"pydantic", "pydantic_core"} and hasattr(client, "scheme"):
        return Found(str(client), None)  # a URL in a settings object
    if libraries <= sys.stdlib_module_names:
        raise TypeError(f"a store URL must be a str, not {type(client).__name__}")
    raise _refused(client, "it is not a client whose settings are known")


def _of_redis(client: Any) -> Found:
    pool = getattr(client, "connection_pool", None)
    if pool is None or "Sentinel" in type(pool).__name__ or "Cluster" in type(client).__name__:
        raise _refused(client, "only the settings of a client of one server can be taken over")
    given: Mapping[str, Any] = pool.connection_kwargs
    connection = getattr(pool, "connection_class", type(None)).__name__
    for name in _OF_REDIS_REFUSED:
        if given.get(name):
            raise _refused(client, f"it has {name}")
    provider = given.get("credential_provider")
    username, password = given.get("username") or "", given.get("password")
    secret: Callable[[], str] | None = (lambda: str(password)) if password else None
    if provider is not None:
        credentials = provider.get_credentials()
        username = credentials[0] if len(credentials) > 1 else ""
        secret = lambda: str(provider.get_credentials()[-1])  # noqa: E731
    options: dict[str, str] = {}
    tls = "SSL" in connection
    if tls:
        names = {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "key": "ssl_keyfile"}
        options = {ours: str(given[its]) for ours, its in names.items() if given.get(its)}
        if str(given.get("ssl_cert_reqs")).lower() in ("none", "0", "verifymode.cert_none"):
            options["verify"] = "off"
    user = f"{quote(username, safe='')}@" if username else ""
    if given.get("path"):
        place = f"unix://{user}{quote(given['path'])}"
    else:
        scheme = "rediss" if tls else "redis"
        host, port, db = given.get("host", "localhost"), given.get("port", 6379), given.get("db")
        place = f"{scheme}://{user}{_host(host)}:{port}/{db or 0}"
    return Found(place + _query(options), secret)


def _of_pool(pool: Any) -> Found:
    from psycopg.conninfo import conninfo_to_dict

    conninfo = pool.conninfo
    if not isinstance(conninfo, str):
        raise _refused(pool, "its conninfo is a function")
    known = {name: value for name, value in (pool.kwargs or {}).items() if isinstance(value, str)}
    return _of_libpq(pool, {**conninfo_to_dict(conninfo), **known})


def _of_sqlalchemy(engine: Any) -> Found:
    url = engine.url
    if url.get_backend_name() != "postgresql":
        raise _refused(engine, "only engines of PostgreSQL are supported")
    given = {"host": url.host, "port": url.port, "user": url.username, "dbname": url.database}
    return _of_libpq(engine, {**given, "password": url.password, **url.query})


def _of_etcd3gw(client: Any) -> Found:
    """Return the settings of a client of etcd's JSON gateway, which Lockfast uses, too."""
    verify, certificate = client.session.verify, client.session.cert
    options = {"ca": verify} if isinstance(verify, str) else {} if verify else {"verify": "off"}
    if certificate:
        files = (certificate,) if isinstance(certificate, str) else certificate
        options |= dict(zip(("cert", "key"), files, strict=False))
    tls = client.protocol == "https"
    place = f"{'etcds' if tls else 'etcd'}://{_host(client.host)}:{client.port}"
    return Found(place + _query(options if tls else {}), None)


def _of_libpq(client: object, given: Mapping[str, Any]) -> Found:
    values = {name: str(value) for name, value in given.items() if value not in (None, "")}
    password = values.pop("password", "")
    options = {name: value for name, value in values.items() if name not in _OF_LIBPQ}
    for name in ("options", "client_encoding", "connect_timeout", "krbsrvname", "sslcompression"):
        options.pop(name, None)
    host = values.get("host", "")
    if "/" in host or "," in host or "," in values.get("port", ""):
        options |= {name: values[name] for name in ("host", "port") if name in values}
        place = ""
    else:
        place = _host(host) + (f":{values['port']}" if "port" in values else "")
    user = f"{quote(values['user'], safe='')}@" if "user" in values else ""
    url = f"postgresql://{user}{place}/{quote(values.get('dbname', ''), safe='')}"
    return Found(url + _query(options), (lambda: password) if password else None)


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _query(options: Mapping[str, str]) -> str:
    return f"?{urlencode(options)}" if options else ""


def _refused(client: object, why: str) -> UnsupportedError:
    kind = type(client)
    return UnsupportedError(
        f"connecting with a {kind.__module__}.{kind.__qualname__}",
        why,
        "pass a store URL, a redis.Redis (blocking or asyncio), a psycopg connection or pool, "
        "a SQLAlchemy engine of PostgreSQL, or an etcd3gw client",
    )
