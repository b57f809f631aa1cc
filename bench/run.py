"""The command `./dev bench`: measure Lockfast, by store or by subject."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from bench.contention import Contention
from bench.contestants import LOCKS, Lockfast
from bench.crew import CrewError
from bench.embedded import Embedded, Plan, run_embedded
from bench.report import report, targets
from bench.retained import Retained, RetainedPlan, report_retained, run_retained, targets_retained

F = TypeVar("F", bound=Any)

QUICK = Plan(rounds=2, pairs_per_round=100, handovers_per_round=2, grants_per_process=100)


def main() -> int:
    """Return 0 whatever the figures are; 1 if a lock failed or two processes held it at once."""
    arguments = _parser().parse_args()
    if arguments.what == "retained":
        return _retained(arguments)
    if arguments.what == "observe":
        return _observe(arguments)
    if arguments.what == "server":
        return _server(arguments)
    plan = QUICK if arguments.quick else Plan()
    if arguments.rounds:
        plan = replace(plan, rounds=arguments.rounds)
    if arguments.what == "redis":
        return _redis(arguments, plan)
    if arguments.what == "etcd":
        return _etcd(arguments, plan)
    if arguments.what == "zookeeper":
        return _zookeeper(arguments, plan)
    if arguments.what == "postgresql":
        return _postgresql(arguments, plan)
    if arguments.what == "bloat":
        return _bloat(arguments)
    if arguments.what == "quorum":
        return _quorum(arguments, plan)
    if arguments.what == "cluster":
        return _cluster(arguments)
    return _embedded(arguments, plan)


def _server(arguments: argparse.Namespace) -> int:
    from bench import server

    plan = server.QUICK if arguments.quick else server.ServerPlan()
    return server.run_server(replace(plan, rounds=arguments.rounds or plan.rounds))


def _embedded(arguments: argparse.Namespace, plan: Plan) -> int:
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, ", end="")
    print(f"{os.cpu_count()} cores, {plan.rounds} rounds\n", flush=True)

    def measure() -> Embedded:
        with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as directory:
            return run_embedded(plan, Path(directory), arguments.without, _show_progress)

    return _run(
        arguments, plan, measure, report, targets, lambda found: [*found.contention.values()]
    )


def _redis(arguments: argparse.Namespace, plan: Plan) -> int:
    # Imported here: the other benchmarks need no Redis library.
    from bench.redis import report_redis, run_redis, targets_redis

    return _run(
        arguments,
        plan,
        lambda: run_redis(plan, arguments.without, _show_progress),
        report_redis,
        targets_redis,
        lambda found: [found.contention],
    )


def _cluster(arguments: argparse.Namespace) -> int:
    # Imported here: the other benchmarks need no Redis nodes.
    from bench.cluster import run_cluster

    _show_progress("a Redis Cluster of one node, and of three")
    run_cluster(2.0 if arguments.quick else 10.0)
    return 0


def _quorum(arguments: argparse.Namespace, plan: Plan) -> int:
    # Imported here: the other benchmarks need no Redis nodes.
    from bench.quorum import report_quorum, run_quorum

    _show_progress("a majority of five Redis nodes")
    print(report_quorum(run_quorum(plan.rounds, arguments.without)))
    return 0


def _postgresql(arguments: argparse.Namespace, plan: Plan) -> int:
    # Imported here: the other benchmarks need no driver.
    from bench.postgresql import report_postgresql, run_postgresql, targets_postgresql

    return _run(
        arguments,
        plan,
        lambda: run_postgresql(plan, arguments.without, _show_progress),
        report_postgresql,
        targets_postgresql,
        lambda found: [found.contention],
    )


def _bloat(arguments: argparse.Namespace) -> int:
    # Imported here: the other benchmarks need no driver.
    from bench.bloat import QUICK_FACTOR, run_bloat

    for line in run_bloat(QUICK_FACTOR if arguments.quick else 1):
        print(line, flush=True)
    return 0


def _etcd(arguments: argparse.Namespace, plan: Plan) -> int:
    # Imported here: the other benchmarks need no etcd server.
    from bench.etcd import report_etcd, run_etcd, targets_etcd

    return _run(
        arguments,
        plan,
        lambda: run_etcd(plan, arguments.without, _show_progress),
        report_etcd,
        targets_etcd,
        lambda found: [found.contention],
    )


def _zookeeper(arguments: argparse.Namespace, plan: Plan) -> int:
    # Imported here: the other benchmarks need no ZooKeeper server.
    from bench.zookeeper import report_zookeeper, run_zookeeper, targets_zookeeper

    return _run(
        arguments,
        plan,
        lambda: run_zookeeper(plan, arguments.without, _show_progress),
        report_zookeeper,
        targets_zookeeper,
        lambda found: [found.contention],
    )


def _observe(arguments: argparse.Namespace) -> int:
    # Imported here: the other benchmarks need neither metrics nor traces.
    from bench.observe import ObservePlan, report_observe, run_observe

    plan = ObservePlan(rounds=8) if arguments.quick else ObservePlan()
    if arguments.rounds:
        plan = plan._replace(rounds=arguments.rounds)
    for line in report_observe(run_observe(plan, arguments.before, _show_progress)):
        print(line)
    return 0


def _retained(arguments: argparse.Namespace) -> int:
    plan = RetainedPlan()
    if arguments.quick:
        plan = replace(plan, rounds=2)
    if arguments.rounds:
        plan = replace(plan, rounds=arguments.rounds)

    def measure() -> Retained:
        with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as directory:
            return run_retained(plan, Path(directory), _show_progress)

    return _run(arguments, plan, measure, report_retained, targets_retained, lambda found: [])


def _run(
    arguments: argparse.Namespace,
    plan: Plan | RetainedPlan,
    measure: Callable[[], F],
    report_of: Callable[[F], str],
    targets_of: Callable[[F], Sequence[Any]],
    contentions_of: Callable[[F], Sequence[Mapping[str, Contention]]],
) -> int:
    """Measure, print the figures, and write JSON if requested."""
    try:
        figures = measure()
    except CrewError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(report_of(figures))
    if arguments.json:
        described = {
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "plan": asdict(plan),
            "figures": asdict(figures),
            "targets": [asdict(target) for target in targets_of(figures)],
        }
        arguments.json.write_text(json.dumps(described, indent=2) + "\n")
    ours = [by_name.get(Lockfast.name) for by_name in contentions_of(figures)]
    if any(result and result.overlaps for result in ours):
        print("bench: two processes held the same Lockfast lock at once", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench", description="Measure Lockfast.")
    parser.add_argument(
        "what",
        nargs="?",
        choices=[
            "embedded",
            "redis",
            "etcd",
            "zookeeper",
            "postgresql",
            "bloat",
            "quorum",
            "cluster",
            "retained",
            "observe",
            "server",
        ],
        default="embedded",
    )
    parser.add_argument("--rounds", type=_positive, metavar="N", help=f"default {Plan().rounds}")
    parser.add_argument("--quick", action="store_true", help="rough figures within seconds")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=sorted(
            {kind.name for kind in LOCKS}
            | {
                "redis-py",
                "python-redis-lock",
                "pottery",
                "redlock-py",
                "aioredlock",
                "aetcd",
                "etcd3gw",
                "kazoo",
                "tooz",
            }
            | {"pals", "sqlalchemy-dlock", "pg_advisory_lock", "row with a state"}
        ),
        help="leave a contestant out (may be repeated)",
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="SRC",
        help="observe: also measure the version whose source tree this is",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE too")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _show_progress(text: str) -> None:
    print(f"measuring: {text} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
