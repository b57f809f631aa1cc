"""`./dev bench [embedded | redis | etcd | retained]`, and how much of it to measure."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from bench.contestants import LOCKS, Lockfast
from bench.crew import CrewError
from bench.embedded import Embedded, Plan, run_embedded
from bench.report import report, targets
from bench.retained import RetainedPlan, report_retained, run_retained, targets_retained

QUICK = Plan(rounds=2, pairs_per_round=100, handovers_per_round=2, grants_per_process=100)


def main() -> int:
    """0 whatever the figures say; 1 if a lock failed or did not exclude."""
    arguments = _parser().parse_args()
    if arguments.what == "retained":
        return _retained(arguments)
    if arguments.what == "redis":
        return _redis(arguments)
    if arguments.what == "etcd":
        return _etcd(arguments)
    plan = QUICK if arguments.quick else Plan()
    if arguments.rounds:
        plan = replace(plan, rounds=arguments.rounds)
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, ", end="")
    print(f"{os.cpu_count()} cores, {plan.rounds} rounds\n", flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as directory:
            figures = run_embedded(plan, Path(directory), arguments.without, _show_progress)
    except CrewError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(report(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(_as_json(plan, figures), indent=2) + "\n")
    ours = [by_name.get(Lockfast.name) for by_name in figures.contention.values()]
    if any(result and result.overlaps for result in ours):
        print("bench: two processes held the same Lockfast lock at once", file=sys.stderr)
        return 1
    return 0


def _redis(arguments: argparse.Namespace) -> int:
    # Imported here: the others do without a Redis library.
    from bench.redis import LockfastRedis, report_redis, run_redis, targets_redis

    plan = QUICK if arguments.quick else Plan()
    if arguments.rounds:
        plan = replace(plan, rounds=arguments.rounds)
    try:
        figures = run_redis(plan, arguments.without, _show_progress)
    except CrewError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(report_redis(figures))
    if arguments.json:
        described = {
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "plan": asdict(plan),
            "figures": asdict(figures),
            "targets": [asdict(target) for target in targets_redis(figures)],
        }
        arguments.json.write_text(json.dumps(described, indent=2) + "\n")
    ours = figures.contention.get(LockfastRedis.name)
    if ours is not None and ours.overlaps:
        print("bench: two processes held the same Lockfast lock at once", file=sys.stderr)
        return 1
    return 0


def _etcd(arguments: argparse.Namespace) -> int:
    # Imported here: the others do without an etcd server.
    from bench.etcd import LockfastEtcd, report_etcd, run_etcd, targets_etcd

    plan = QUICK if arguments.quick else Plan()
    if arguments.rounds:
        plan = replace(plan, rounds=arguments.rounds)
    try:
        figures = run_etcd(plan, arguments.without, _show_progress)
    except CrewError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(report_etcd(figures))
    if arguments.json:
        described = {
            "cores": os.cpu_count(),
            "plan": asdict(plan),
            "figures": asdict(figures),
            "targets": [asdict(target) for target in targets_etcd(figures)],
        }
        arguments.json.write_text(json.dumps(described, indent=2) + "\n")
    ours = figures.contention.get(LockfastEtcd.name)
    if ours is not None and ours.overlaps:
        print("bench: two processes held the same Lockfast lock at once", file=sys.stderr)
        return 1
    return 0


def _retained(arguments: argparse.Namespace) -> int:
    plan = RetainedPlan()
    if arguments.quick:
        plan = replace(plan, rounds=2)
    if arguments.rounds:
        plan = replace(plan, rounds=arguments.rounds)
    try:
        with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as directory:
            figures = run_retained(plan, Path(directory), _show_progress)
    except CrewError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(report_retained(figures))
    if arguments.json:
        described = {
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "plan": asdict(plan),
            "figures": asdict(figures),
            "targets": [asdict(target) for target in targets_retained(figures)],
        }
        arguments.json.write_text(json.dumps(described, indent=2) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench", description="Measure Lockfast.")
    parser.add_argument(
        "what", nargs="?", choices=["embedded", "redis", "etcd", "retained"], default="embedded"
    )
    parser.add_argument("--rounds", type=_positive, metavar="N", help=f"default {Plan().rounds}")
    parser.add_argument("--quick", action="store_true", help="rough figures within seconds")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=sorted(
            {kind.name for kind in LOCKS}
            | {"redis-py", "python-redis-lock", "pottery", "aetcd", "etcd3gw", "tooz"}
        ),
        help="leave a contestant out (may be repeated)",
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


def _as_json(plan: Plan, figures: Embedded) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "plan": asdict(plan),
        "figures": asdict(figures),
        "targets": [asdict(target) for target in targets(figures)],
    }


if __name__ == "__main__":
    sys.exit(main())
