"""`lockfast doctor` for a majority of Redis nodes: each node, and all of them together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lockfast.errors import StoreError, StoreUnavailableError
from lockfast.stores.diagnosis import Diagnosis, Maintenance
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.maintenance import RedisMaintenance


class QuorumMaintenance(Maintenance):
    def __init__(self, label: str, addresses: Sequence[Address], skew_ms: int) -> None:
        super().__init__(label)
        self._addresses = addresses
        self._skew_ms = skew_ms

    def examine(self) -> Iterator[Diagnosis]:
        answered = 0
        for number, address in enumerate(self._addresses, 1):
            found = self._node(f"node {number}", address)
            answered += found.verdict == "good"
            yield found
        yield self._majority(answered)

    def _node(self, what: str, address: Address) -> Diagnosis:
        place = address.path or f"{address.host}:{address.port}"
        try:
            rows = {row.what: row for row in RedisMaintenance(address).examine()}
        except StoreUnavailableError as error:
            # The other nodes continue without it, as long as they are a majority.
            return Diagnosis(what, f"{place}: {error.what}", "note", error.advice)
        except StoreError as error:
            return Diagnosis(what, f"{place}: {error.what}", "bad", error.advice)
        for row in rows.values():
            # The node's data of the queued store does not matter here.
            if row.verdict == "bad" and row.what != "namespace":
                return Diagnosis(what, f"{place}: {row.what}: {row.found}", "bad", row.advice)
        off = re.match(r"\d+", rows["clock"].found)
        found = f"{place}: {rows['server'].found}, clock {rows['clock'].found}"
        if off is None or int(off[0]) > self._skew_ms:
            advice = "it refuses proposals from other clocks; synchronize them, or raise ?skew="
            return Diagnosis(what, found, "bad", advice)
        if rows["replicas"].found != "none":
            advice = "a failover to a replica may forget votes: use independent nodes"
            return Diagnosis(what, f"{place}: has replicas", "bad", advice)
        return Diagnosis(what, f"{found}, persistence {rows['persistence'].found}")

    def _majority(self, answered: int) -> Diagnosis:
        nodes = len(self._addresses)
        majority = nodes // 2 + 1
        found = f"{answered} of {nodes} nodes are fit, {majority} are needed"
        if answered < majority:
            return Diagnosis("majority", found, "bad", "nothing can be granted")
        if nodes % 2 == 0:
            advice = f"{nodes - 1} nodes would tolerate as many losses"
            return Diagnosis("majority", found, "note", advice)
        return Diagnosis("majority", found)
