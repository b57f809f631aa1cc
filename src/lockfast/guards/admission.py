"""What every guard decides alike: which floors a token is compared with, and the verdict.

A floor is the newest exclusive token admitted so far, kept under a `Mark`; it only rises.
A guard for another resource needs two steps that nothing may come between: read the
`compared` marks and `judge`, then raise the `raised` marks to the token.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Final, NamedTuple, Protocol, TypeVar

from lockfast import process_observer
from lockfast.core.names import ancestors, check_name
from lockfast.errors import LockfastError, StaleTokenError, StoreError, UnsupportedError

T = TypeVar("T")

TOKEN_MAX = 2**53 - 1
ATTEMPTS: Final = 50
"""How often a guard that reads its floors first tries to write; each failed attempt means that
another admission has changed one of the floors."""


class InvalidTokenError(LockfastError, ValueError):
    """The value cannot be a token; it was not compared with anything."""

    def __init__(self, token: object, why: str) -> None:
        self.token = token
        self.why = why
        super().__init__(f"{_shown(token)} is not a token: {why}; pass `lease.token`")


class FenceDamagedError(LockfastError):
    """The place where a guard keeps its token contains something else; nothing was written."""

    def __init__(self, where: str, found: bytes, wanted: str, advice: str) -> None:
        self.where = where
        super().__init__(f"{where} has {found[:40]!r} where {wanted} belongs; {advice}")


class Guard(Protocol):
    """Protects a resource: refuses holders that have been succeeded by another."""

    def admit(self, resource: str, token: int, *, shared: bool = False, once: bool = False) -> None:
        """Admit the holder of `token` to `resource`, or raise StaleTokenError.

        A token is admitted unless a newer exclusive one was admitted before; from then on, older
        tokens are refused. With `once`, a token is admitted a single time. With `shared`, the token
        is compared but not recorded: readers do not exclude each other. A refusal changes nothing.

        InvalidNameError, InvalidTokenError and UnsupportedError are raised before anything is read.
        """
        ...

    def floor(self, resource: str) -> int:
        """Return the lowest token that would be admitted now; 0 if any token would."""
        ...


class Mark(NamedTuple):
    """Where one floor is kept."""

    scope: str
    """`name`: a plain guard's; `tree`: tokens admitted on this very name by a tree guard;
    `below`: those admitted on any name beneath it."""
    resource: str

    @property
    def key(self) -> str:
        """One text for both, for guards that keep floors under text keys."""
        return f"{self.scope}:{self.resource}"


class Admission(NamedTuple):
    """A request for admission, validated but not yet decided."""

    resource: str
    token: int
    once: bool
    compared: tuple[Mark, ...]
    raised: tuple[Mark, ...]
    guard: str = "custom"
    """The kind of guard, for observers."""

    @property
    def marks(self) -> tuple[Mark, ...]:
        """All floors that the token concerns, each once."""
        return tuple(dict.fromkeys([*self.compared, *self.raised]))

    def gave_up(self, advice: str = "retry") -> StoreError:
        """Return the error of a guard whose ATTEMPTS have all failed."""
        return StoreError(
            self.guard,
            f"the floors of {self.resource!r} changed {ATTEMPTS} times while token {self.token} "
            "was admitted",
            advice,
        )


def plan_admission(
    resource: str, token: int, *, shared: bool, once: bool, tree: bool, guard: str = "custom"
) -> Admission:
    """Validate the arguments and return the floors that they concern; no I/O."""
    compared = compared_marks(resource, tree=tree)
    check_token(token)
    if shared and once:
        raise UnsupportedError(
            "admit(shared=True, once=True)",
            "a shared token is not remembered, so a second use cannot be told from the first",
            "drop one of them",
        )
    raised = () if shared else _raised_marks(resource, tree=tree)
    return Admission(resource, token, once, compared, raised, guard)


def judge(admission: Admission, floor: int) -> None:
    """Raise StaleTokenError unless the token reaches the highest of its compared floors."""
    token = admission.token
    passes = token > floor if admission.once else token >= floor
    if not passes:
        if process_observer.observe is not None:
            _tell_refused(admission, floor)
        raise StaleTokenError(admission.resource, token, floor, once=admission.once)


def admitted(admission: Admission) -> None:
    """Report an admitted token to observers."""
    if process_observer.observe is not None:
        _tell_admitted(admission)


def _tell_admitted(admission: Admission) -> None:
    from lockfast.events import GuardAdmitted
    from lockfast.runtimes.platform import now_us

    resource, token = admission[:2]
    assert process_observer.observe is not None
    process_observer.observe(GuardAdmitted(now_us(), admission.guard, resource, token))


def _tell_refused(admission: Admission, floor: int) -> None:
    from lockfast.events import GuardRefused
    from lockfast.runtimes.platform import now_us

    resource, token = admission[:2]
    assert process_observer.observe is not None
    process_observer.observe(GuardRefused(now_us(), admission.guard, resource, token, floor))


def compared_marks(resource: str, *, tree: bool) -> tuple[Mark, ...]:
    """Return the floors that a token for `resource` must reach. Raises InvalidNameError."""
    check_name(resource)
    if not tree:
        return (Mark("name", resource),)
    # A lease on a name excludes writers above, on and below it. Without the mark for the names
    # below, a stale writer of `a` could overwrite its successor's `a/b`.
    at_or_above = (*ancestors(resource), resource)
    return (*(Mark("tree", name) for name in at_or_above), Mark("below", resource))


def refuse_shared(shared: bool, what: str) -> None:
    """Raise UnsupportedError if a reader's token is used at a guard that only writes."""
    if shared:
        raise UnsupportedError(
            f"{what} with the token of a reader",
            "its lease admits other readers, so it must not write",
            "use a lease that is exclusive",
        )


def checked_result(result: T) -> T:
    """Return the result of an operation; raise UnsupportedError if it has yet to be awaited."""
    if isinstance(result, Coroutine):
        result.close()
        raise UnsupportedError(
            "an operation that is a coroutine function",
            "this guard calls it and does not await it, so it would write nothing",
            "pass a function without `async`",
        )
    return result


def _raised_marks(resource: str, *, tree: bool) -> tuple[Mark, ...]:
    if not tree:
        return (Mark("name", resource),)
    return (Mark("tree", resource), *(Mark("below", name) for name in ancestors(resource)))


def check_token(token: object) -> None:
    """Raise InvalidTokenError unless `token` is an integer from 1 to `TOKEN_MAX`."""
    # To Python, True is an int and would pass as token 1.
    if isinstance(token, bool) or not isinstance(token, int):
        raise InvalidTokenError(token, f"it is a {type(token).__name__}, not an int")
    if token < 1:
        raise InvalidTokenError(token, "tokens begin at 1")
    if token > TOKEN_MAX:
        raise InvalidTokenError(token, f"tokens end at {TOKEN_MAX}")


def _shown(token: object) -> str:
    # Python refuses to print an int of more than 4,300 digits.
    if isinstance(token, int) and abs(token) > 10**40:
        return f"an integer of {token.bit_length()} bits"
    shown = repr(token)
    return shown if len(shown) <= 80 else shown[:77] + "…"
