"""doctor: is this store fit to keep locks?"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from lockfast.api import settings
from lockfast.cli import codes
from lockfast.cli.documents import write_json
from lockfast.cli.text import printable, table
from lockfast.errors import UnsupportedError
from lockfast.stores.registry import parse_url

if TYPE_CHECKING:
    from lockfast.stores.redis.checkup import Finding

REDIS: Final = ("redis", "rediss", "unix", "valkey", "valkeys", "valkey+unix")
_SIGNS: Final = {"good": "ok", "note": "note", "bad": "BAD"}


def doctor(arguments: argparse.Namespace) -> int:
    """Look at the store and say what was found; raises StoreMisconfiguredError if it is unfit."""
    url = parse_url(arguments.where or getattr(arguments, "url", None) or settings.default_url())
    if url.scheme not in REDIS:
        raise UnsupportedError(
            f"doctor of {url.label}", "there is nothing to be looked at in this kind of store yet"
        )
    from lockfast.stores.redis.address import parse
    from lockfast.stores.redis.checkup import examine, refuse_if_bad

    address = parse(url)
    findings = list(examine(address))
    if arguments.json:
        write_json([finding._asdict() for finding in findings])
    else:
        for line in table(("", "LOOKED AT", "FOUND"), [_row(finding) for finding in findings]):
            print(line)
    refuse_if_bad(address, findings)
    return codes.OK


def _row(finding: Finding) -> tuple[str, ...]:
    found = finding.found + (f" ({finding.advice})" if finding.advice else "")
    return _SIGNS[finding.verdict], finding.what, printable(found)
