"""`lockfast doctor` for a majority of nodes: each node, and all of them together."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Final

from lockfast.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from lockfast.stores.diagnosis import Diagnosis, Maintenance
from lockfast.stores.http.blocking import Connection
from lockfast.stores.http.members import Members
from lockfast.stores.lockserver.address import Address as ServerAddress
from lockfast.stores.memory import wall_us
from lockfast.stores.quorum.http import HttpNodes, about_of, about_request
from lockfast.stores.quorum.messages import About
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.maintenance import RedisMaintenance

ASK_S: Final = 5.0
CLOCKS: Final = "it refuses proposals from other clocks; synchronize them, or raise ?skew="


class QuorumMaintenance(Maintenance):
    def __init__(self, label: str, places: Sequence[str]) -> None:
        super().__init__(label)
        self._places = places

    @abstractmethod
    def _examine_node(self, node: int, what: str, place: str) -> Diagnosis:
        """Check one node. Raises StoreError."""

    def examine(self) -> Iterator[Diagnosis]:
        answered = 0
        for node in range(len(self._places)):
            found = self._node(node)
            answered += found.verdict == "good"
            yield found
        yield self._majority(answered)

    def _node(self, node: int) -> Diagnosis:
        what, place = f"node {node + 1}", self._places[node]
        try:
            return self._examine_node(node, what, place)
        except StoreUnavailableError as error:
            # The other nodes continue without it, as long as they are a majority.
            return Diagnosis(what, f"{place}: {error.what}", "note", error.advice)
        except StoreError as error:
            return Diagnosis(what, f"{place}: {error.what}", "bad", error.advice)

    def _majority(self, answered: int) -> Diagnosis:
        nodes = len(self._places)
        majority = nodes // 2 + 1
        found = f"{answered} of {nodes} nodes are fit, {majority} are needed"
        if answered < majority:
            return Diagnosis("majority", found, "bad", "nothing can be granted")
        if nodes % 2 == 0:
            advice = f"{nodes - 1} nodes would tolerate as many losses"
            return Diagnosis("majority", found, "note", advice)
        return Diagnosis("majority", found)


class RedisQuorumMaintenance(QuorumMaintenance):
    def __init__(self, label: str, addresses: Sequence[Address], skew_ms: int) -> None:
        super().__init__(label, [each.path or f"{each.host}:{each.port}" for each in addresses])
        self._addresses = addresses
        self._skew_ms = skew_ms

    def _examine_node(self, node: int, what: str, place: str) -> Diagnosis:
        rows = {row.what: row for row in RedisMaintenance(self._addresses[node]).examine()}
        for row in rows.values():
            # The node's data of the queued store does not matter here.
            if row.verdict == "bad" and row.what != "namespace":
                return Diagnosis(what, f"{place}: {row.what}: {row.found}", "bad", row.advice)
        off = re.match(r"\d+", rows["clock"].found)
        found = f"{place}: {rows['server'].found}, clock {rows['clock'].found}"
        if off is None or int(off[0]) > self._skew_ms:
            return Diagnosis(what, found, "bad", CLOCKS)
        if rows["replicas"].found != "none":
            advice = "a failover to a replica may forget votes: use independent nodes"
            return Diagnosis(what, f"{place}: has replicas", "bad", advice)
        return Diagnosis(what, f"{found}, persistence {rows['persistence'].found}")


class HttpQuorumMaintenance(QuorumMaintenance):
    def __init__(
        self, label: str, addresses: Sequence[ServerAddress], skew_us: int, silence_ms: int
    ) -> None:
        super().__init__(label, [str(each.members[0]) for each in addresses])
        self._addresses = addresses
        self._skew_us = skew_us
        self._nodes = HttpNodes(label, addresses, skew_us, silence_ms)

    def _examine_node(self, node: int, what: str, place: str) -> Diagnosis:
        about, off_us = self._ask(self._addresses[node])
        wrong = self._nodes.check(node, about)
        if wrong is not None:
            return Diagnosis(what, f"{place}: {wrong.what}", "bad", wrong.advice)
        found = f"{place}: Lockfast {about.version}, clock {round(off_us / 1000)} ms off"
        if off_us > self._skew_us:
            return Diagnosis(what, found, "bad", CLOCKS)
        if about.silent_ms:
            advice = "its data was lost, or it is new; it counts as absent until then"
            silent_s = about.silent_ms / 1000
            return Diagnosis(what, f"{found}, silent for {silent_s:.0f} s", "note", advice)
        return Diagnosis(what, found)

    def _ask(self, address: ServerAddress) -> tuple[About, int]:
        """Return what a server says, and by how much its clock differs at least."""
        members = Members(address.label, address.members, address.tls)
        until_s = monotonic() + ASK_S
        connection = Connection(members, members.current, until_s)
        try:
            before_us = wall_us()
            packed = about_request(address).packed(str(members.current))
            response = connection.exchange(packed, until_s)
            after_us = wall_us()
        except OutcomeUnknownError as error:
            raise StoreUnavailableError(error.store, error.what) from None
        finally:
            connection.close()
        about = about_of(address.label, response)
        if not isinstance(about, About):
            raise about
        return about, max(before_us - about.wall_us, about.wall_us - after_us, 0)
