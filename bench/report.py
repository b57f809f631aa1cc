"""The figures as tables, and whether each target was met."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.contestants import Filelock, Floor, Lockfast, Portalocker
from bench.embedded import MANY, Embedded

__all__ = ["Target", "report", "table", "targets"]

FLOOR_TIMES_MAX = 2.0
IDLE_TIMES_MIN = 50.0


@dataclass(frozen=True)
class Target:
    text: str
    measured: str
    met: bool


def report(figures: Embedded) -> str:
    parts = [
        _uncontended(figures),
        _idle(figures),
        *(_contention(figures, processes) for processes in figures.contention),
        _order(figures),
        _targets(figures),
    ]
    return "\n\n".join(parts)


def targets(figures: Embedded) -> list[Target]:
    """Return the targets that this run can judge: those whose contestants were measured."""
    return list(_judged(figures))


def _judged(figures: Embedded) -> Iterator[Target]:
    ours = figures.uncontended.get(Lockfast.name)
    if ours is None:
        return
    floor = ours.times(figures.uncontended[Floor.name])
    yield Target(
        f"uncontended at most {FLOOR_TIMES_MAX:g} × the floor",
        f"{floor:.2f} ×",
        floor <= FLOOR_TIMES_MAX,
    )
    if theirs := figures.uncontended.get(Filelock.name):
        ratio = ours.times(theirs)
        yield Target("uncontended faster than filelock", f"{ratio:.2f} × its time", ratio < 1)
    for name in (Filelock.name, Portalocker.name):
        if name in figures.idle_ms:
            ratio = figures.idle_ms[name].median / figures.idle_ms[Lockfast.name].median
            yield Target(
                f"idle hand-over at least {IDLE_TIMES_MIN:g} × faster than {name}",
                f"{ratio:.0f} × faster",
                ratio >= IDLE_TIMES_MIN,
            )
    order = figures.order[Lockfast.name]
    yield Target(
        f"at {MANY} processes every grant goes to the longest waiter",
        f"{order.to_longest_waiter} of {order.grants}",
        order.to_longest_waiter == order.grants,
    )


def _uncontended(figures: Embedded) -> str:
    floor = figures.uncontended[Floor.name]
    rows = [
        (name, f"{result.pair_us.median:.1f}", f"{result.pair_us.p99:.1f}", f"{ratio:.2f}")
        for name, result in figures.uncontended.items()
        for ratio in [result.times(floor)]
    ]
    return table(
        f"Uncontended acquire + release, one process (floor: two transactions, {figures.library})",
        ("", "median µs", "p99 µs", "× floor"),
        rows,
    )


def _idle(figures: Embedded) -> str:
    ours = figures.idle_ms.get(Lockfast.name)
    rows = [
        (
            name,
            f"{took.median:.2f}",
            f"{took.p99:.2f}",
            f"{took.median / ours.median:.1f}" if ours else "–",
            str(took.count),
        )
        for name, took in figures.idle_ms.items()
    ]
    return table(
        "Idle hand-over: from the holder's release to the only waiter's grant",
        ("", "median ms", "p99 ms", "× lockfast", "samples"),
        rows,
    )


def _contention(figures: Embedded, processes: int) -> str:
    rows = [
        (
            name,
            f"{result.grants_per_s:,.0f}",
            f"{result.handovers_per_s:,.0f}",
            f"{result.fairness:.2f}",
            str(result.most_passed),
            str(result.overlaps),
        )
        for name, result in figures.contention[processes].items()
    ]
    return table(
        f"{processes} processes, each acquiring again as soon as it has released "
        f"(fair: Jain 1, passed over about {processes - 1})",
        ("", "grants/s", "hand-overs/s", "Jain", "most passed over", "overlaps"),
        rows,
    )


def _order(figures: Embedded) -> str:
    rows = [
        (name, f"{order.to_longest_waiter} of {order.grants}", f"{order.share:.0%}")
        for name, order in figures.order.items()
    ]
    return table(
        f"Grants that went to the longest waiter, {MANY} processes in the queue",
        ("", "grants", "share"),
        rows,
    )


def _targets(figures: Embedded) -> str:
    judged = targets(figures)
    if not judged:
        return "Targets: not judged, Lockfast was left out"
    rows = [(target.text, target.measured, "met" if target.met else "missed") for target in judged]
    return table("Targets", ("", "measured", ""), rows)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table: the first column left-aligned, the others right-aligned."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = [title]
    for first, *others in lines:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        text.append("  ".join(["  " + first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(text)
