"""quorum+redis://host,host,host…: exclusive locks on a majority of independent nodes.

Also quorum+rediss, quorum+valkey, quorum+valkeys, and quorum+unix:///path,/path,/path; each node
is written as in a redis:// URL. Options: those of redis://, skew=0.5 (seconds by which clocks
may differ), silence=60 (seconds for which a restarted node grants nothing; no TTL is longer).

quorum+http://host:port,…, quorum+https://…: nodes are Lockfast servers (`lockfast serve --node`).
Options: those of https://, and skew and silence, which must be those of the servers.

For tests: quorum+memory://5/name keeps five nodes in this process. quorum+sqlite:///a,/b,/c has a
node in each file, which processes of one machine may share; options: skew, and silence (0 unless
given: seconds for which a new file grants nothing).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lockfast.errors import StoreMisconfiguredError
from lockfast.ports import Store
from lockfast.runtimes.platform import at_fork, now_ms
from lockfast.runtimes.threads import ThreadsRuntime
from lockfast.stores.diagnosis import Maintenance
from lockfast.stores.quorum import Backend, QuorumStore
from lockfast.stores.quorum.local import LocalBackend, LocalNodes
from lockfast.stores.quorum.memory import MemoryNode
from lockfast.stores.quorum.wire import TTL_MS_MAX
from lockfast.stores.registry import Face, StoreUrl

if TYPE_CHECKING:
    from lockfast.stores.lockserver import address as lockserver
    from lockfast.stores.quorum.fleet import Nodes
    from lockfast.stores.redis.address import Address

HTTP_SCHEMES: Final = ("quorum+http", "quorum+https")
NODES_MAX: Final = 15
SKEW_S: Final = 0.5
SILENCE_S: Final = 60.0

_nodes: dict[tuple[str, ...], LocalNodes] = {}
_inherited: Final[list[LocalNodes]] = []
"""Nodes of a parent process: their files are neither used nor closed here."""
_mutex = threading.Lock()


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    if url.scheme == "quorum+memory":
        url.refuse_other_options()
        runtime = ThreadsRuntime()
        return QuorumStore(url.label, LocalBackend(_memory_nodes(url), runtime), runtime, runtime)
    if url.scheme == "quorum+sqlite":
        return _open_sqlite(url, face)
    if url.scheme in HTTP_SCHEMES:
        return _open_http(url, face)
    return _open_redis(url, face)


def _memory_nodes(url: StoreUrl) -> LocalNodes:
    """Return the nodes of a quorum+memory:// URL."""
    number, _, _ = url.location.partition("/")
    if not number.isdecimal() or not 1 <= int(number) <= NODES_MAX:
        raise StoreMisconfiguredError(
            url.label, "names no number of nodes", "write quorum+memory://5/name"
        )
    with _mutex:
        return _nodes.setdefault(
            (url.location, url.namespace),
            LocalNodes([MemoryNode(lambda: now_ms()) for _ in range(int(number))]),
        )


def _open_sqlite(url: StoreUrl, face: Face) -> Store:
    from lockfast.stores.quorum.sqlite import SqliteNode
    from lockfast.stores.sqlite import parse

    url.refuse_other_options("skew", "silence")
    skew_us = round(_seconds(url, "skew", SKEW_S) * 1_000_000)
    silence_ms = round(_seconds(url, "silence", 0.0) * 1000) if "silence" in url.options else 0
    options = {"namespace": url.namespace} if url.namespace else {}
    parts = url.location.split(",")
    paths = [parse(StoreUrl("sqlite", part, options, url.label)).path for part in parts]
    # A link to a file is the same node.
    places = tuple(os.path.realpath(path) for path in paths)
    _check_nodes(url, places)
    with _mutex:
        nodes = _nodes.get(places)
        if nodes is None:
            labels = (f"{url.label} (node {number})" for number in range(1, len(places) + 1))
            nodes = _nodes[places] = LocalNodes(
                [
                    SqliteNode(Path(place), label, skew_us, silence_ms)
                    for place, label in zip(places, labels, strict=True)
                ]
            )
    threads = ThreadsRuntime()
    ttl_ms_max = silence_ms or TTL_MS_MAX
    if face == "asyncio":
        from lockfast.runtimes.aio import AsyncioRuntime
        from lockfast.stores.quorum.local_aio import AsyncLocalBackend

        runtime = AsyncioRuntime()
        backend = AsyncLocalBackend(nodes, threads)
        return QuorumStore(url.label, backend, runtime, threads, ttl_ms_max=ttl_ms_max)
    return QuorumStore(
        url.label, LocalBackend(nodes, threads), threads, threads, ttl_ms_max=ttl_ms_max
    )


def open_maintenance(url: StoreUrl) -> Maintenance:
    if url.scheme in ("quorum+memory", "quorum+sqlite"):
        return Maintenance(url.label)
    from lockfast.stores.quorum.maintenance import HttpQuorumMaintenance, RedisQuorumMaintenance

    skew_us, silence_ms = _clock_options(url)
    if url.scheme in HTTP_SCHEMES:
        return HttpQuorumMaintenance(url.label, _servers(url), skew_us, silence_ms)
    return RedisQuorumMaintenance(url.label, _addresses(url), skew_us // 1000)


def _addresses(url: StoreUrl) -> tuple[Address, ...]:
    from lockfast.stores.redis.address import parse

    if "wait" in url.options:
        raise StoreMisconfiguredError(
            url.label, "has wait=, but its nodes have no replicas", "leave wait= out"
        )
    options = {k: v for k, v in url.options.items() if k not in ("skew", "silence")}
    scheme = url.scheme.removeprefix("quorum+")
    parts = url.location.split(",")
    addresses: tuple[Address, ...] = tuple(
        parse(StoreUrl(scheme, part, options, f"{url.label} (node {number})", url.password))
        for number, part in enumerate(parts, 1)
    )
    _check_nodes(url, [(a.path or a.host, 0 if a.path else a.port, a.db) for a in addresses])
    return addresses


def _check_nodes(url: StoreUrl, places: Sequence[object]) -> None:
    if len(set(places)) < len(places):
        # A node that is counted twice would fake a majority.
        raise StoreMisconfiguredError(url.label, "names a node twice", "name each node once")
    if not 3 <= len(places) <= NODES_MAX:
        raise StoreMisconfiguredError(
            url.label, f"names {len(places)} nodes", f"name 3 to {NODES_MAX}, better an odd number"
        )


def _open_redis(url: StoreUrl, face: Face) -> Store:
    from lockfast.stores.quorum.redis import RedisNodes

    skew_us, silence_ms = _clock_options(url)
    addresses = _addresses(url)
    nodes = RedisNodes(addresses, addresses[0].namespace, skew_us, silence_ms)
    return _over_network(url, face, nodes, silence_ms)


def _open_http(url: StoreUrl, face: Face) -> Store:
    from lockfast.stores.quorum.http import HttpNodes

    skew_us, silence_ms = _clock_options(url)
    nodes = HttpNodes(url.label, _servers(url), skew_us, silence_ms)
    return _over_network(url, face, nodes, silence_ms)


def _servers(url: StoreUrl) -> tuple[lockserver.Address, ...]:
    """Return the address of each server; each may have its own token, as in :token@host."""
    from lockfast.stores.lockserver.address import parse

    options = {k: v for k, v in url.options.items() if k not in ("skew", "silence")}
    scheme = url.scheme.removeprefix("quorum+")
    addresses = tuple(
        parse(StoreUrl(scheme, part, options, f"{url.label} (node {number})", url.password))
        for number, part in enumerate(url.location.split(","), 1)
    )
    _check_nodes(url, [address.members[0] for address in addresses])
    return addresses


def _clock_options(url: StoreUrl) -> tuple[int, int]:
    """Return skew in microseconds and silence in milliseconds."""
    skew_s, silence_s = _seconds(url, "skew", SKEW_S), _seconds(url, "silence", SILENCE_S)
    return round(skew_s * 1_000_000), round(silence_s * 1000)


def _over_network(url: StoreUrl, face: Face, nodes: Nodes, silence_ms: int) -> Store:
    from lockfast.stores.quorum.fleet import NetworkBackend

    threads = ThreadsRuntime()
    backend: Backend = NetworkBackend(nodes)
    runtime = threads
    if face == "asyncio":
        from lockfast.runtimes.aio import AsyncioRuntime
        from lockfast.stores.quorum.aio import AsyncNetworkBackend

        backend, runtime = AsyncNetworkBackend(nodes), AsyncioRuntime()
    return QuorumStore(url.label, backend, runtime, threads, ttl_ms_max=silence_ms)


def _seconds(url: StoreUrl, name: str, default: float) -> float:
    text = url.options.get(name)
    try:
        found = default if text is None else float(text)
    except ValueError:
        found = -1.0
    if not 0.001 <= found <= 86_400:
        raise StoreMisconfiguredError(
            url.label, f"{name}={text!r} is no span", f"write seconds, for example {name}={default}"
        )
    return found


def _after_fork_in_child() -> None:
    """Forget all nodes in a forked child, which has its own copy of the memory."""
    global _mutex
    _mutex = threading.Lock()
    _inherited.extend(_nodes.values())
    _nodes.clear()


at_fork(after_in_child=_after_fork_in_child)
