"""The storage for `lease.execute_with_fence`: a guard of `lockfast.guards`, or your own."""

from __future__ import annotations

from typing import Protocol, TypeVar

O_contra = TypeVar("O_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Storage(Protocol[O_contra, R_co]):
    """A resource that executes an operation only if its token is not stale."""

    def execute(
        self,
        resource: str,
        token: int,
        operation: O_contra,
        *,
        shared: bool = False,
        once: bool = False,
    ) -> R_co:
        """Check the token and execute `operation`, in one indivisible step.

        Raises StaleTokenError, and does nothing, if a newer token was admitted to `resource`.
        With `once`, a token passes a single time. With `shared`, the token belongs to a reader: it
        is compared but not recorded. The storage defines what the operation receives and what
        is returned.
        """
        ...


class AsyncStorage(Protocol[O_contra, R_co]):
    """A `Storage` for asyncio."""

    async def execute(
        self,
        resource: str,
        token: int,
        operation: O_contra,
        *,
        shared: bool = False,
        once: bool = False,
    ) -> R_co: ...
