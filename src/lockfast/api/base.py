"""Code shared by the blocking and the asyncio API: everything that never waits."""

from __future__ import annotations

import atexit
import functools
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from lockfast.api import observing, settings
from lockfast.core.commands import PLACES_MAX, Place
from lockfast.core.modes import (
    EXCLUSIVE,
    INTENT_EXCLUSIVE,
    INTENT_SHARED,
    LOCK,
    PERMIT,
    SHARED,
    TREE,
    UPDATE,
    join,
)
from lockfast.core.names import ancestors
from lockfast.errors import LeaseLostError, LimitError, UnsupportedError
from lockfast.flow import acquire as claims
from lockfast.flow.client import Core, check_store
from lockfast.flow.effects import without
from lockfast.flow.holding import INTENTS, RELEASED, Ask, Holding, LeaseState, Phase
from lockfast.flow.lock_order import LockOrder
from lockfast.flow.retained import RetainedLock, Use
from lockfast.ports import Runtime, StoreWithRuntime
from lockfast.runtimes.platform import now_ms
from lockfast.runtimes.threads import ThreadSignal, ThreadsRuntime, run
from lockfast.stores.registry import Face, open_store

if TYPE_CHECKING:
    from lockfast.events import Observer
    from lockfast.telemetry.delivery import Delivery
    from lockfast.telemetry.stats import Collector, Stats

L = TypeVar("L", bound="LeaseBase")
R = TypeVar("R")

EXIT_MS = 2000
HOLDING_STATES = (LeaseState.HELD, LeaseState.UNCERTAIN)
LIMIT_MAX = 1_000_000_000


class LeaseBase:
    """The attributes and state of a lease; the subclasses add the methods that wait."""

    _holding: Holding
    _retained: RetainedLock | None = None
    _use: Use | None = None
    _depth = 1
    _on_released: Callable[[], None] | None = None

    def __init__(self, core: Core, holding: Holding) -> None:
        self._core = core
        self._holding = holding
        if holding.ask.block <= 1:  # a retained claim outlives its users' leases
            holding.owner = weakref.ref(self)

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._holding.ask.name

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all its locks: one, unless several were acquired at once."""
        places = self._holding.ask.places
        return tuple(place.name for place in places if place.mode not in INTENTS)

    @property
    def token(self) -> int:
        """The fencing token, greater than the token of every earlier grant of this lock."""
        return self._holding.token if self._use is None else self._use.token

    @property
    def session(self) -> str:
        """The id of the session that holds the lease."""
        session = self._holding.session
        return session.id if session is not None else ""

    @property
    def owner(self) -> str:
        """The label by which other clients see this holder."""
        return self._core.owner

    @property
    def deadline(self) -> float:
        """The time on the local monotonic clock at which the lease ends unless renewed."""
        session = self._holding.session
        assert session is not None
        return session.deadline_of(self._holding) / 1000

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; 0.0 once the lease has ended."""
        if self.state in (LeaseState.LOST, LeaseState.RELEASED):
            return 0.0
        return max(0.0, self.deadline - self._core.runtime.now_ms() / 1000)

    @property
    def state(self) -> LeaseState:
        """The current state, computed from the clock, so a delayed thread cannot make it stale."""
        if self._use is not None and self._use.ended:
            return LeaseState.RELEASED
        session = self._holding.session
        assert session is not None
        return session.state_of(self._holding)

    def check(self) -> None:
        """Raise LeaseLostError unless the lease is held now."""
        if self._use is not None and self._use.ended:
            raise LeaseLostError(self.name, self._use.token, "it was released")
        claims.check(self._holding)

    def _on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the lease is lost or released, or now if it already is."""
        session = self._holding.session
        assert session is not None
        waiting = False
        # In a forked child the mutex may have been locked by a thread that no longer exists.
        if session.process != session.runtime.process():
            pass
        elif self._retained is not None and self._use is not None:
            waiting = self._retained.add_on_end(self._use, callback)
        else:
            with session.mutex:
                waiting = self._holding.phase is Phase.HELD
                if waiting:
                    self._holding.on_end += (callback,)
        if not waiting:
            callback()

    def _remove_on_end(self, callback: Callable[[], None]) -> None:
        session = self._holding.session
        assert session is not None
        if session.process != session.runtime.process():
            return
        if self._retained is not None and self._use is not None:
            self._retained.remove_on_end(self._use, callback)
            return
        with session.mutex:
            self._holding.on_end = without(self._holding.on_end, callback)

    def _re_enter(self) -> None:
        self.check()
        self._depth += 1

    def _leave_once(self) -> bool:
        """Count one release of a re-entrant lease. Return True for the outermost one."""
        self._depth -= 1
        if self._depth > 0:
            return False
        if self._on_released is not None:
            self._on_released()
            self._on_released = None
        return True

    def _release_later(self) -> None:
        """Let the keeper release the lease in the background, for callers that cannot wait."""
        session = self._holding.session
        assert session is not None
        session.release_later(self._holding)

    def _refuse_conversion(self) -> None:
        """Raise UnsupportedError for leases whose mode is fixed."""
        places = self._holding.ask.places
        if self._use is not None:
            why = "a retained lock is shared with other local users, which rely on its mode"
        elif len(places) > 1 or places[0].kind != LOCK:
            why = "only the lease of a single lock or read-write lock can change its mode"
        else:
            return
        raise UnsupportedError(f"converting the lease on {self.name!r}", why)

    def _fence(self, storage: object, resource: str | None) -> tuple[str, bool]:
        """Return what this lease fences in `storage`, and whether it holds that as a reader."""
        self.check()
        asked = [place for place in self._holding.ask.places if place.mode not in INTENTS]
        if resource is None and len(asked) > 1:
            raise UnsupportedError(
                f"execute_with_fence() of the lease on {self.name!r}",
                "each of its locks has a floor of its own",
                "name the one you write to: resource=…",
            )
        # A storage without the attribute `tree`, such as a file, needs no check.
        if asked[0].kind == TREE and getattr(storage, "tree", True) is False:
            raise UnsupportedError(
                f"fencing the tree lock {self.name!r} with a guard for plain locks",
                "it would let older holders of the levels above and beneath pass",
                "make the guard with tree=True",
            )
        modes = [place.mode for place in asked if resource in (None, place.name)]
        if len(asked) == 1:
            modes = [self._holding.mode if asked[0].kind == LOCK else asked[0].mode]
        is_reader = bool(modes) and all(mode in (SHARED, UPDATE) for mode in modes)
        return self.name if resource is None else resource, is_reader

    def _executed(self, storage: object, result: R, advice: str) -> R:
        """Return the result of a storage; raise UnsupportedError if it has yet to be awaited."""
        if isinstance(result, Coroutine):
            result.close()
            raise UnsupportedError(
                f"execute_with_fence() with {type(storage).__name__}",
                "its execute() returned a coroutine, and nothing was executed",
                advice,
            )
        return result

    def _chain(self, error: BaseException, lost: LeaseLostError) -> None:
        """Attach the loss as the context of the error that takes precedence."""
        # If `lost` was raised while handling `error`, its context is `error`: avoid the cycle.
        lost.__context__ = None
        last = error
        while last.__context__ is not None and last.__context__ is not lost:
            last = last.__context__
        if last is not lost:
            last.__context__ = lost

    def __repr__(self) -> str:
        holding = self._holding
        if holding.session is None:
            return f"<{type(self).__name__} {self.name!r} not acquired>"
        if holding.mode == PERMIT:
            what = f"permits={holding.ask.places[0].weight}"
        else:
            what = f"token={holding.token if self._use is None else self._use.token}"
        state = self.state
        left = f", {self.remaining:.1f} s left" if state in HOLDING_STATES else ""
        return f"<{type(self).__name__} {self.name!r} {what} {state}{left}>"

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            f"pickling the lease on {self.name!r}",
            "a lease is valid only in the process that acquired it",
            "pass its token instead",
        )

    def __del__(self) -> None:
        use = self._use
        # __init__ may have been interrupted before it set the attribute.
        holding = getattr(self, "_holding", None) if use is None else use.holding
        if holding is None or holding.phase is RELEASED or holding.session is None:
            return
        if holding.phase is Phase.LOST:
            if use is None:
                holding.session.work_has_stopped(holding)
            return
        if use is not None:
            if use.ended:
                return
            assert self._retained is not None
            holding.session.release_use_from_finalizer(self._retained, use)
        else:
            holding.session.release_from_finalizer(holding)
        held = holding.phase is Phase.HELD
        if held and holding.session.process == os.getpid():
            warnings.warn(
                f"lease on {holding.ask.name!r} (token {holding.token}) was never released",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )


class Options(NamedTuple):
    """The validated options of a recipe."""

    ttl_ms: int
    priority: int
    max_hold_ms: int
    lock_delay_ms: int
    timeout_ms: int | None = None
    """How long acquire() waits unless it is given a timeout; None: forever."""
    fixed_ms: int = 0
    """How long a lease without renewal lasts; 0: it is renewed."""


PlacesOf = Callable[[str], tuple[Place, ...]]
"""Maps a name to the places that a claim on it occupies."""


class Part(NamedTuple):
    """One name of a recipe. A recipe for several locks, made by `all()`, has several parts."""

    name: str
    places_of: PlacesOf


def lock_places(mode: str) -> PlacesOf:
    return lambda name: (Place(LOCK, name, mode),)


def tree_places(mode: str) -> PlacesOf:
    """Claim the node in `mode` and every ancestor in the matching intention mode."""
    intent = INTENT_EXCLUSIVE if mode == EXCLUSIVE else INTENT_SHARED
    return lambda name: (
        *(Place(TREE, ancestor, intent) for ancestor in ancestors(name)),
        Place(TREE, name, mode),
    )


def joined_places(parts: Sequence[tuple[Place, ...]]) -> tuple[Place, ...]:
    """Combine several claims into one; two places on the same resource become one place.

    Raises LimitError if there are too many.
    """
    if len(parts) == 1:
        return _bounded(parts[0])
    joined: dict[tuple[str, str], Place] = {}
    for place in (place for places in parts for place in places):
        key = (place.kind, place.name)
        known = joined.get(key)
        if known is None:
            joined[key] = place
        elif place.mode == PERMIT:
            joined[key] = known._replace(weight=known.weight + place.weight)
        else:
            joined[key] = known._replace(mode=join(known.mode, place.mode))
    return _bounded(tuple(joined.values()))


def _bounded(places: tuple[Place, ...]) -> tuple[Place, ...]:
    if len(places) > PLACES_MAX:
        raise LimitError(
            "the number of locks at once (a tree lock counts once per level)",
            len(places),
            PLACES_MAX,
            "take fewer",
        )
    return places


class Named:
    """The base of all recipes: they can be printed, but not pickled."""

    _core: Core
    _name: str

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} on {self._core.store.label}>"

    def __reduce__(self) -> NoReturn:
        raise not_picklable(f"{type(self).__name__} {self._name!r}", "it belongs to a client")


def not_picklable(what: str, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"pickling {what}",
        f"{why}, and a client has connections and threads of its process",
        "connect in the other process and create it there",
    )


class RecipeBase(Named):
    """A recipe: the name and options of a lock. It holds nothing and may be shared."""

    def __init__(
        self,
        client: ClientBase,
        parts: tuple[Part, ...],
        options: Options,
        *,
        reentrant: bool = False,
        retain: bool = False,
    ) -> None:
        self._client = client
        self._core = client._core
        self._parts = parts
        self._name = ", ".join(part.name for part in parts)
        self._options = options
        self._reentrant = reentrant
        self._retain = retain
        self._own_ask = self._ask_for_names([part.name for part in parts])
        self._own_retained: RetainedLock | None = None

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._name

    def _ask(self) -> Ask:
        return self._own_ask

    def _timeout_ms(self, timeout: settings.Timeout) -> int | None:
        if timeout is settings.DEFAULT:
            return self._options.timeout_ms
        return settings.timeout_to_ms(timeout)

    def _ask_for_names(self, names: Sequence[str]) -> Ask:
        options = self._options
        parts = zip(self._parts, names, strict=True)
        return Ask(
            joined_places([part.places_of(name) for part, name in parts]),
            options.ttl_ms,
            options.priority,
            options.priority * self._core.ageing_step_ms,
            options.max_hold_ms,
            options.lock_delay_ms,
            fixed_ms=options.fixed_ms,
        )

    def _retained_lock(self, ask: Ask) -> RetainedLock:
        """Return this client's retained lock for `ask`."""
        if ask is self._own_ask and self._own_retained is not None:
            return self._own_retained
        locks = self._client._retained_locks
        found = locks.get(ask)
        if found is None:
            found = locks.setdefault(ask, RetainedLock(self._core, ask))
        if ask is self._own_ask:
            self._own_retained = found
        return found


def lease_of_block(entered: dict[str, list[L]], actor: str) -> L:
    """Return the lease of the `with` block that `actor` leaves now."""
    if actor not in entered:
        # A generator is closed by the thread or task that collects it, not the one that ran it.
        if len(entered) != 1:
            raise RuntimeError(
                f"{actor} leaves a `with` block that another thread or task entered, and "
                f"{len(entered)} of them are inside such blocks; in a generator, use the lease "
                "as the context manager: `with lock.acquire():`"
            )
        (actor,) = entered
    leases = entered[actor]
    lease = leases.pop()
    if not leases:
        del entered[actor]
    return lease


def check_limit(limit: object) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise TypeError(f"limit must be an int, not {type(limit).__name__}")
    if not 1 <= limit <= LIMIT_MAX:
        raise ValueError(f"limit={limit}: must be from 1 to {LIMIT_MAX}")
    return limit


def check_permits(permits: object, limit: int) -> int:
    if not isinstance(permits, int) or isinstance(permits, bool):
        raise TypeError(f"permits must be an int, not {type(permits).__name__}")
    if not 1 <= permits <= limit:
        raise LimitError("the number of permits", permits, limit, "ask for 1 up to the limit")
    return permits


class ClientBase:
    """The attributes of a client; the subclasses add the methods that wait."""

    _core: Core

    def _connect(
        self,
        url: object,
        face: Face,
        runtime: Runtime,
        *,
        password: Callable[[], str] | None,
        check: bool,
        ttl: settings.Seconds | None,
        owner: str | None,
        metadata: str,
        connect_timeout: settings.Seconds,
        ageing_step: settings.Seconds,
        deadlock_after: settings.Seconds,
        death_watch: bool,
        debug: bool,
        observers: Sequence[Observer],
    ) -> None:
        ttl_ms = settings.ttl_to_ms(settings.default_ttl() if ttl is None else ttl)
        label = owner or os.environ.get("LOCKFAST_OWNER")
        if label:
            label = settings.check_text(label, "owner", settings.OWNER_BYTES_MAX)
        settings.check_text(metadata, "metadata", settings.METADATA_BYTES_MAX)
        connect_timeout_ms = max(1, settings.to_ms(connect_timeout, "connect_timeout"))
        ageing_step_ms = settings.to_ms(ageing_step, "ageing_step")
        deadlock_after_ms = settings.to_ms(deadlock_after, "deadlock_after")
        if password is not None and not callable(password):
            raise TypeError("password must be a function; put a plain password into the URL")
        if url is not None and not isinstance(url, str):
            from lockfast.stores.ready_clients import settings_of

            url, provided = settings_of(url)
            password = password or provided
        # Not `url or`: a setting that is empty by mistake must not lead to a file of this machine.
        url = settings.default_url() if url is None else url
        store = open_store(url, face, password=password, death_watch=death_watch)
        keeper_runtime: Runtime = ThreadsRuntime()
        if isinstance(store, StoreWithRuntime):
            runtime, keeper_runtime = store.runtime(face), store.runtime("threads")
        self._core = Core(
            store,
            runtime,
            keeper_runtime,
            ttl_ms=ttl_ms,
            # The default includes the pid, so it is computed again in a forked child.
            owner=label or settings.default_owner,
            metadata=metadata,
            connect_timeout_ms=connect_timeout_ms,
            ageing_step_ms=ageing_step_ms,
            deadlock_after_ms=deadlock_after_ms,
        )
        self._collector: tuple[Collector, Delivery] | None = None
        observing.attach(self._core.emitter, observers)
        if debug:
            self._core.lock_order = LockOrder(runtime.mutex())
        self._leases_of: weakref.WeakValueDictionary[tuple[str, tuple[Place, ...]], Any] = (
            weakref.WeakValueDictionary()
        )
        """The held leases of re-entrant locks, by actor and places."""
        self._retained_locks: dict[Ask, RetainedLock] = {}
        open_cores.add(self._core)
        if check:
            try:
                run(check_store(self._core, keeper_runtime))
            except BaseException:
                run(self._core.close())
                raise

    def _options(
        self,
        ttl: settings.Seconds | None,
        priority: int = 0,
        max_hold: settings.Seconds | None = None,
        lock_delay: settings.Seconds | None = None,
        timeout: settings.Seconds | None = None,
        renew: bool = True,
    ) -> Options:
        ttl_ms = self._core.ttl_ms if ttl is None else settings.ttl_to_ms(ttl)
        return Options(
            ttl_ms,
            settings.check_priority(priority),
            settings.max_hold_to_ms(max_hold),
            0 if lock_delay is None else settings.to_ms(lock_delay, "lock_delay"),
            settings.timeout_to_ms(timeout),
            0 if renew else ttl_ms,
        )

    def stats(self) -> Stats:
        """Return health figures of this client over the last minute, 15 minutes and hour.

        Collecting them costs a few microseconds per acquire, so it begins with the first call;
        `since` says how long ago that was. Percentiles are off by at most 5 %.
        """
        from lockfast.telemetry.delivery import Delivery
        from lockfast.telemetry.stats import Collector

        if self._collector is None:
            collector = Collector()
            self._collector = collector, Delivery(collector)
            observing.attach_inner(self._core.emitter, self._collector[1])
        collector, delivery = self._collector
        delivery.drain()
        return collector.stats()

    def _close_observers(self) -> None:
        observing.detach(self._core.emitter)

    @property
    def url(self) -> str:
        """The store's URL, without its password."""
        return self._core.store.label

    @property
    def owner(self) -> str:
        """The label by which other clients see the holder of our locks."""
        return self._core.owner

    def __repr__(self) -> str:
        return f"<Client of {self._core.store.label}>"

    def __reduce__(self) -> NoReturn:
        raise not_picklable("a client", "its leases are valid only in this process")


open_cores: weakref.WeakSet[Core] = weakref.WeakSet()
"""Cores rather than clients, because a lease may outlive its client object."""


def _refusal_at_exit(core: Core) -> BaseException:
    """Return SystemExit for daemon threads, so that they end without a traceback at exit."""
    if threading.current_thread() is threading.main_thread():
        return core.closed_error()
    return SystemExit()


@atexit.register
def _close_all() -> None:
    """Release all locks at interpreter exit, waiting at most EXIT_MS."""
    cores = [core for core in list(open_cores) if not core.closed]
    signals: list[ThreadSignal] = []
    for core in cores:
        core.closed = True
        core.refusal = functools.partial(_refusal_at_exit, core)
        for session in core.sessions():
            signal = ThreadSignal()
            if session.close(signal.set):
                signals.append(signal)
    until_ms = now_ms() + EXIT_MS
    for signal in signals:
        signal.wait_blocking(max(0, until_ms - now_ms()))
