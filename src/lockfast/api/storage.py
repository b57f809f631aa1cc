"""What `lease.execute_with_fence` writes to: a guard of `lockfast.guards`, or one of your own."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

O_contra = TypeVar("O_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Storage(Protocol[O_contra, R_co]):
    """A resource that carries out an operation only with a token that is not stale."""

    def execute(
        self,
        resource: str,
        token: int,
        operation: O_contra,
        *,
        shared: bool = False,
        once: bool = False,
    ) -> R_co:
        """Check the token and carry out `operation`, in one step that nothing comes between.

        Raises StaleTokenError, and does nothing, if a newer token was admitted to `resource`.
        With `once`, a token passes a single time. With `shared`, the token of a reader, it is
        compared and not remembered. What an operation is given, and what is returned, is up
        to the storage.
        """
        ...


class AsyncStorage(Protocol[O_contra, R_co]):
    """The same for asyncio."""

    def execute(
        self,
        resource: str,
        token: int,
        operation: O_contra,
        *,
        shared: bool = False,
        once: bool = False,
    ) -> Awaitable[R_co]: ...
