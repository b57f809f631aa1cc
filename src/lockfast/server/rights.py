"""Who may do what: principal × namespace × prefix × verb. What is not granted is denied.

A prefix covers the name itself and everything below it: `orders` covers `orders` and `orders/42`,
not `orders-old`. The empty prefix covers every name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

READ: Final = "read"
ACQUIRE: Final = "acquire"
REVOKE: Final = "revoke"
ADMIN: Final = "admin"
VERBS: Final = (READ, ACQUIRE, REVOKE, ADMIN)
ANYBODY: Final = "*"


class Grant(NamedTuple):
    """One line of the rights file."""

    principal: str
    """Or "*" for every authenticated principal."""
    namespace: str
    """"" is the default namespace, "*" every one."""
    prefix: str
    verbs: frozenset[str]

    def covers(self, name: str) -> bool:
        prefix = self.prefix.rstrip("/")
        return not prefix or name == prefix or name.startswith(prefix + "/")


class Rights:
    """The rights of one principal in one namespace."""

    def __init__(self, grants: Iterable[Grant], *, everything: bool = False) -> None:
        self._grants = tuple(grants)
        self.everything = everything or any(
            ADMIN in grant.verbs and not grant.prefix.strip("/") for grant in self._grants
        )
        """Nothing needs to be checked or hidden."""

    def allow(self, verb: str, name: str) -> bool:
        return self.everything or any(
            (verb in grant.verbs or ADMIN in grant.verbs) and grant.covers(name)
            for grant in self._grants
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rights) and (self._grants, self.everything) == (
            other._grants,
            other.everything,
        )

    def __hash__(self) -> int:
        return hash((self._grants, self.everything))

    def any(self) -> bool:
        """Return whether the principal has any right in this namespace."""
        return self.everything or bool(self._grants)


class RightsTable:
    """All grants of the rights file."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._grants = tuple(grants)

    def of(self, principal: str, namespace: str) -> Rights:
        return Rights(
            grant
            for grant in self._grants
            if grant.principal in (principal, ANYBODY) and grant.namespace in (namespace, "*")
        )


EVERYTHING: Final = Rights((), everything=True)
