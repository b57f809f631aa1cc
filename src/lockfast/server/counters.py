"""The server's own counters, in Prometheus' text format, without a library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class Counters:
    """Counts requests by command and status. Labels have few values: no names, no principals."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()

    def answered(self, command: str, status: int) -> None:
        self._requests[command, status] += 1

    def text(self, gauges: Mapping[str, int]) -> str:
        lines = [
            "# HELP lockfast_server_requests_total Requests by command and HTTP status.",
            "# TYPE lockfast_server_requests_total counter",
        ]
        lines += [
            f'lockfast_server_requests_total{{command="{command}",status="{status}"}} {count}'
            for (command, status), count in sorted(self._requests.items())
        ]
        for name, value in gauges.items():
            lines += [f"# TYPE lockfast_server_{name} gauge", f"lockfast_server_{name} {value}"]
        return "\n".join(lines) + "\n"
