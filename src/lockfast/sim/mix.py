"""A mix: the workloads and faults of a world, from a small text file or from a seed."""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from lockfast.sim.faults import ALL, FAULTS
from lockfast.sim.workloads import EXCLUSIVE_WORKLOADS, WORKLOADS

STORES = tuple(sorted(ALL, key=lambda store: (store != "memory", store)))
"""What worlds can run on; the lock table comes first."""


TEXT_MAX = 1 << 20
"""The maximum length of a file in characters."""
KNOB_MAX = 1_000_000
QUORUM_DRIFT_PPM = 1000
"""The bound within which the clocks of nodes and clients stay, for example by NTP."""
CLOCKED = ("redis", "postgresql")
"""The stores whose server counts TTLs by its wall clock."""
CRASH_TOGETHER = 0.3
"""The share of crashes that kill all clients but one in the same instant."""
BOUNDS = {
    "clients": (1, 1000),
    "ttl_ms": (10, 3_600_000),
    "chaos_ms": (1, 3_600_000),
    "ageing_step_ms": (0, 3_600_000),
    "operations": (0, 1_000_000),
}
"""The bounds of each parameter of a world."""


class MixError(ValueError):
    """The file does not describe a mix."""


@dataclass(frozen=True)
class Mix:
    """Together with a seed, everything that determines what happens in a world.

    Clients take the workloads in turn; all faults are active at the same time.
    """

    workloads: Mapping[str, Mapping[str, Any]]
    faults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    store: str = "memory"
    clients: int = 4
    ttl_ms: int = 900
    chaos_ms: int = 800
    """How long faults may happen."""
    ageing_step_ms: int = 50
    operations: int = 50
    """Clients continue until there were this many operations."""
    fenced: bool = True

    def __post_init__(self) -> None:
        if not self.workloads:
            raise MixError("a mix has at least one workload")
        if self.store not in STORES:
            raise MixError(f"there is no store {self.store!r}; there are {', '.join(STORES)}")
        for kind, given, known in (
            ("workload", self.workloads, WORKLOADS),
            ("fault", self.faults, FAULTS),
        ):
            for name, knobs in given.items():
                if name not in known:
                    raise MixError(f"there is no {kind} {name!r}; there are {', '.join(known)}")
                if kind == "fault" and self.store not in FAULTS[name].stores:
                    raise MixError(f"the fault {name!r} does not happen to {self.store!r}")
                for knob, value in knobs.items():
                    if knob not in known[name].knobs:
                        has = ", ".join(known[name].knobs)
                        raise MixError(f"{kind} {name!r} has no knob {knob!r}; it has {has}")
                    usual = known[name].knobs[knob]
                    if not _is_alike(value, usual):
                        raise MixError(
                            f"{kind} {name!r}: {knob} is {str(value)[:60]}, expected "
                            f"something like {usual}, at most {KNOB_MAX}"
                        )
        for name, (low, high) in BOUNDS.items():
            if not low <= getattr(self, name) <= high:
                raise MixError(f"{name} is {getattr(self, name)}, not within {low} and {high}")

    def knobs_of_workload(self, name: str) -> dict[str, Any]:
        return {**WORKLOADS[name].knobs, **self.workloads[name]}

    def knobs_of_fault(self, name: str) -> dict[str, Any]:
        return {**FAULTS[name].knobs, **self.faults[name]}

    @property
    def forgets(self) -> bool:
        """Return True if its store may grant a lock that is still held."""
        return self.moves_deadlines or self.loses_state

    @property
    def moves_deadlines(self) -> bool:
        """Return True if its server counts TTLs by its wall clock, and that clock may jump."""
        return self.store in CLOCKED and "wall_jump" in self.faults

    @property
    def loses_state(self) -> bool:
        """Return True if a fault takes acknowledged writes from its store."""
        return any(FAULTS[name].forgets for name in self.faults)

    def __str__(self) -> str:
        return " ".join((self.store, *self.workloads, *(f"+{name}" for name in self.faults)))


def _is_alike(value: object, usual: object) -> bool:
    """Return True if a parameter has the type of its default and is within bounds."""
    if isinstance(usual, tuple):
        return (
            isinstance(value, tuple | list)
            and len(value) == len(usual)
            and all(_is_alike(one, 1.0) for one in value)
            and value[0] <= value[1]
        )
    if isinstance(usual, float):
        return type(value) in (int, float) and 0 <= value <= KNOB_MAX  # type: ignore[operator]
    return type(value) is int and 0 <= value <= KNOB_MAX


def _check_section(section: object) -> None:
    if not isinstance(section, dict):
        raise MixError(f"expected a section, not {str(section)[:60]!r}")


_PLAIN = ("store", "clients", "ttl_ms", "chaos_ms", "ageing_step_ms", "operations", "fenced")


class Case(NamedTuple):
    """A recorded run: everything that determines it, and why it is kept."""

    mix: Mix
    seed: int | None = None
    why: str = ""


def read_case(text: str) -> Case:
    """Parse a mix, with or without a seed, from TOML. Raises MixError."""
    if len(text) > TEXT_MAX:
        raise MixError(f"longer than {TEXT_MAX} characters")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise MixError(f"not TOML: {error}") from None
    seed, why = table.pop("seed", None), table.pop("why", "")
    if type(seed) not in (int, type(None)) or not isinstance(why, str):
        raise MixError(f"seed is a number and why a text, not {seed!r} and {why!r}")
    sections = [table.pop(name, {}) for name in ("world", "workloads", "faults")]
    if table:
        raise MixError(
            f"unknown {next(iter(table))!r}; there are seed, why, [world], [workloads], [faults]"
        )
    for section in sections:
        _check_section(section)
    world, workloads, faults = sections
    for section in (*workloads.values(), *faults.values()):
        _check_section(section)
    for name, value in world.items():
        if name not in _PLAIN:
            raise MixError(f"[world] has no {name!r}; it has {', '.join(_PLAIN)}")
        expected = next(f for f in fields(Mix) if f.name == name).type
        if type(value).__name__ != expected:
            raise MixError(f"[world] {name} is {value!r}, expected {expected}")
    return Case(Mix(workloads, faults, **world), seed, why)


def read_case_file(path: Path) -> Case:
    try:
        with path.open(encoding="utf-8") as file:
            return read_case(file.read(TEXT_MAX + 1))
    except OSError as error:
        raise MixError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise MixError(f"{path} cannot be read: {error}") from None


def write_case(case: Case) -> str:
    """Return the run as TOML, with every parameter, so that later defaults do not change it."""
    head = [] if case.seed is None else [f"seed = {case.seed}"]
    if case.why:
        head.append(f"why = {json.dumps(case.why, ensure_ascii=False)}")
    return "\n".join([*head, ""] if head else head) + ("\n" if head else "") + write_mix(case.mix)


def write_mix(mix: Mix) -> str:
    """Return the mix as TOML, with every parameter, so that later defaults do not change it."""
    lines = ["[world]"]
    lines += [f"{name} = {_toml(getattr(mix, name))}" for name in _PLAIN]
    for workload in mix.workloads:
        lines += ["", f"[workloads.{workload}]"]
        lines += [f"{k} = {_toml(v)}" for k, v in mix.knobs_of_workload(workload).items()]
    for fault in mix.faults:
        lines += ["", f"[faults.{fault}]"]
        lines += [f"{k} = {_toml(v)}" for k, v in mix.knobs_of_fault(fault).items()]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value)
    raise MixError(f"{value!r} cannot be a knob")


def mix_of_seed(seed: int, store: str = "memory") -> Mix:
    """Return the mix of a seed; over all seeds, every workload meets every fault."""
    rng = random.Random(f"mix {seed}" if store == "memory" else f"mix {seed} {store}")
    possible = [name for name, fault in FAULTS.items() if store in fault.stores]
    workloads = list(EXCLUSIVE_WORKLOADS if store == "quorum" else WORKLOADS)
    faults = [None, *possible]
    chosen: dict[str, Mapping[str, Any]] = {workloads[seed % len(workloads)]: {}}
    if "crowd" in chosen and rng.random() < 0.9:
        # It takes as long as many others together.
        chosen = {"many": {}}
    if rng.random() < 0.15:
        chosen[rng.choice(workloads)] = {}
    first = faults[seed // len(workloads) % len(faults)]
    together: dict[str, Mapping[str, Any]] = {first: {}} if first is not None else {}
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3))):
        together[rng.choice(possible)] = {}
    clients = rng.choice((3, 3, 3, 3, 4, 5))
    # A long lease must outlast a long fault, before the world heals.
    chaos_ms = 2500 if "long_holds" in chosen else 800
    if store == "quorum" and "drift" in together:
        together["drift"] = {"ppm": QUORUM_DRIFT_PPM}
    if "wall_jump" in together and store in CLOCKED and seed % 2:
        # A clock that is set back delays the end of those who die, and of nobody else.
        together["crash"] = {}
    if "crash" in together:
        together["crash"] = {"together": CRASH_TOGETHER}
    if "power_cut" in together:
        # Tokens of lost transactions are not granted again because the wall clock advances.
        together.pop("wall_jump", None)
    if store != "etcd":
        return Mix(chosen, together, store, clients, chaos_ms=chaos_ms)
    # An etcd lease has whole seconds, and an election takes nearly as long.
    ttl_ms = rng.choice((1000, 1500, 2000))
    return Mix(chosen, together, store, clients, ttl_ms, chaos_ms=2 * chaos_ms)
