"""Writes the Grafana dashboard: `python contrib/grafana/build.py > contrib/grafana/lockfast.json`.

The dashboard is generated because its JSON is mostly boilerplate; a test checks that the file
is what this script writes, and that every expression uses metrics and labels that exist.
"""

from __future__ import annotations

import json
from typing import Any

SELECT = '{store=~"$store"}'


def rate(metric: str, by: str, where: str = SELECT) -> str:
    return f"sum by ({by}) (rate({metric}{where}[$__rate_interval]))"


def quantile(share: float, metric: str) -> str:
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', 'le')})"


ROWS: list[tuple[str, list[tuple[str, str, list[tuple[str, str]]]]]] = [
    (
        "Is anything wrong?",
        [
            ("Store up", "short", [(f"min by (store) (lockfast_store_up{SELECT})", "{{store}}")]),
            (
                "Leases lost",
                "short",
                [
                    (
                        f"sum by (reason) (increase(lockfast_lease_lost_total{SELECT}"
                        "[$__rate_interval]))",
                        "{{reason}}",
                    )
                ],
            ),
            (
                "Stale tokens refused",
                "short",
                [
                    (
                        "sum by (guard) (increase(lockfast_fence_rejected_total"
                        "[$__rate_interval]))",
                        "{{guard}}",
                    )
                ],
            ),
            (
                "Deadlocks",
                "short",
                [
                    (
                        f"sum by (store) (increase(lockfast_deadlocks_total{SELECT}"
                        "[$__rate_interval]))",
                        "{{store}}",
                    )
                ],
            ),
        ],
    ),
    (
        "Acquires",
        [
            (
                "Acquires by outcome",
                "ops",
                [(rate("lockfast_acquire_total", "outcome"), "{{outcome}}")],
            ),
            (
                "Share that waits",
                "percentunit",
                [
                    (
                        f"{rate('lockfast_acquire_contended_total', 'store')} / "
                        f"{rate('lockfast_acquire_total', 'store')}",
                        "{{store}}",
                    )
                ],
            ),
            (
                "Time to acquire",
                "s",
                [
                    (quantile(share, "lockfast_acquire_wait_seconds"), f"p{share * 100:.0f}")
                    for share in (0.5, 0.95, 0.99)
                ],
            ),
            (
                "Queue length at entry",
                "short",
                [(quantile(0.95, "lockfast_queue_length_at_entry"), "p95")],
            ),
        ],
    ),
    (
        "Leases",
        [
            (
                "Held and waiting now",
                "short",
                [
                    (f"sum(lockfast_locks_held{SELECT})", "held"),
                    (f"sum(lockfast_waiters{SELECT})", "waiting"),
                ],
            ),
            (
                "Time held",
                "s",
                [
                    (quantile(share, "lockfast_hold_seconds"), f"p{share * 100:.0f}")
                    for share in (0.5, 0.95, 0.99)
                ],
            ),
            (
                "Oldest token",
                "s",
                [(f"max by (store) (lockfast_token_age_seconds{SELECT})", "{{store}}")],
            ),
            (
                "Leaders",
                "short",
                [("sum by (name) (leader_election_master_status)", "{{name}}")],
            ),
        ],
    ),
    (
        "Keep-alives and guards",
        [
            (
                "Keep-alives by outcome",
                "ops",
                [(rate("lockfast_renew_total", "outcome"), "{{outcome}}")],
            ),
            (
                "Keep-alive duration",
                "s",
                [
                    (quantile(share, "lockfast_keepalive_seconds"), f"p{share * 100:.0f}")
                    for share in (0.5, 0.99)
                ],
            ),
            (
                "Tokens admitted",
                "ops",
                [(rate("lockfast_fence_admitted_total", "guard", ""), "{{guard}}")],
            ),
        ],
    ),
]


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, charts in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": y},
                "panels": [],
            }
        )
        width = 24 // len(charts)
        for at, (name, unit, targets) in enumerate(charts):
            panels.append(
                {
                    "id": len(panels) + 1,
                    "type": "timeseries",
                    "title": name,
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "gridPos": {"h": 8, "w": width, "x": at * width, "y": y + 1},
                    "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                    "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
                    "targets": [
                        {"refId": chr(ord("A") + i), "expr": expr, "legendFormat": legend}
                        for i, (expr, legend) in enumerate(targets)
                    ],
                }
            )
        y += 9
    return {
        "title": "Lockfast",
        "uid": "lockfast",
        "tags": ["lockfast", "locks"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "store",
                    "type": "query",
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "query": "label_values(lockfast_acquire_total, store)",
                    "includeAll": True,
                    "multi": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": panels,
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2))
