"""doctor: is this store fit to keep locks?"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from lockfast.api import settings
from lockfast.cli import codes
from lockfast.cli.documents import write_json
from lockfast.cli.text import printable, table
from lockfast.errors import UnsupportedError
from lockfast.stores.diagnosis import Diagnosis, refuse_if_bad
from lockfast.stores.registry import parse_url

if TYPE_CHECKING:
    from lockfast.stores.registry import StoreUrl

REDIS: Final = ("redis", "rediss", "unix", "valkey", "valkeys", "valkey+unix")
ETCD: Final = ("etcd", "etcds")
_SIGNS: Final = {"good": "ok", "note": "note", "bad": "BAD"}


def doctor(arguments: argparse.Namespace) -> int:
    """Look at the store and say what was found; raises StoreMisconfiguredError if it is unfit."""
    url = parse_url(arguments.where or getattr(arguments, "url", None) or settings.default_url())
    if arguments.raise_epoch and url.scheme not in ETCD:
        raise UnsupportedError(f"--raise-epoch of {url.label}", "only etcd's tokens have an epoch")
    if url.scheme in ETCD:
        findings = _etcd(url, arguments.raise_epoch)
    elif url.scheme in REDIS:
        findings = _redis(url)
    else:
        raise UnsupportedError(
            f"doctor of {url.label}", "there is nothing to be looked at in this kind of store yet"
        )
    if arguments.json:
        write_json([finding._asdict() for finding in findings])
    else:
        for line in table(("", "LOOKED AT", "FOUND"), [_row(finding) for finding in findings]):
            print(line)
    refuse_if_bad(url.label, findings)
    return codes.OK


def _redis(url: StoreUrl) -> list[Diagnosis]:
    from lockfast.stores.redis.address import parse
    from lockfast.stores.redis.checkup import examine

    return list(examine(parse(url)))


def _etcd(url: StoreUrl, raises_epoch: bool) -> list[Diagnosis]:
    from lockfast.stores.etcd.address import parse
    from lockfast.stores.etcd.checkup import examine

    return list(examine(parse(url), raises_epoch=raises_epoch))


def _row(finding: Diagnosis) -> tuple[str, ...]:
    found = finding.found + (f" ({finding.advice})" if finding.advice else "")
    return _SIGNS[finding.verdict], finding.what, printable(found)
