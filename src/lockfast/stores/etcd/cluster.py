"""What all connections of a store share: which member is asked, and what is known of them."""

from __future__ import annotations

from lockfast.errors import StoreMisconfiguredError
from lockfast.stores.etcd.address import Address, Endpoint
from lockfast.stores.etcd.requests import Json


class Cluster:
    """The members, as one client has come to know them. Any thread may use it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.label = address.label
        self.revision = 0
        """The highest revision heard of."""
        self.token = ""
        """Of the user, for every request; "" until it has been asked for."""
        self.failures: dict[Endpoint, int] = dict.fromkeys(address.endpoints, 0)
        """How often each member did not answer; whoever listens to one sees it rise."""
        self._at = 0
        self._id = ""

    @property
    def endpoint(self) -> Endpoint:
        """The member to ask."""
        return self.address.endpoints[self._at]

    def suspect(self, endpoint: Endpoint) -> None:
        """It did not answer: ask the next, unless another has turned away from it already."""
        self.failures[endpoint] += 1
        if endpoint == self.endpoint:
            self._at = (self._at + 1) % len(self.address.endpoints)

    def learn(self, header: Json) -> None:
        """Take over what every answer begins with; raises if another cluster answers."""
        found = header.get("cluster_id", "")
        if found and found != self._id:
            if self._id:
                raise StoreMisconfiguredError(
                    self.label,
                    f"members of two clusters answer ({self._id} and {found})",
                    "give the endpoints of one cluster only",
                )
            self._id = found
        revision = int(header.get("revision", 0))
        if revision > self.revision:
            self.revision = revision
