"""A watch of the gateway: what to ask for, and what its lines say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from lockfast.errors import StoreUnavailableError
from lockfast.stores.etcd.errors import CompactedError, translate
from lockfast.stores.etcd.requests import Json, Keys, Kv

HEADERS: Final = ("Grpc-Metadata-Hasleader: true",)
"""A member cut off from its leader ends the watch instead of keeping silent."""


class Change(NamedTuple):
    """One key that was written or deleted."""

    kv: Kv
    deleted: bool


def requests(
    keys: Keys, watched: Iterable[tuple[str, int]], *, deaths: Iterable[str] = ()
) -> bytes:
    """One request for several keys, each from a revision on; of `deaths`, the end alone."""
    made: list[Json] = []
    for key, revision in watched:
        made.append({"key": keys.coded(key), "start_revision": str(revision)})
    for key in deaths:
        made.append({"key": keys.coded(key), "filters": ["NOPUT"]})
    return b"\n".join(json.dumps({"create_request": one}).encode() for one in made)


class Lines:
    """The lines of a watch, as they come in pieces."""

    def __init__(self, keys: Keys, label: str) -> None:
        self.revision = 0
        """Up to here everything has come."""
        self.created = 0
        """How many of the keys asked for are watched by now."""
        self._keys = keys
        self._label = label
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[Change]:
        """What the next piece tells; raises CompactedError or StoreUnavailableError."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                yield from self._line(line)

    def end(self) -> StoreUnavailableError:
        """Why the watch is over, though nobody has ended it: its last words end without a line."""
        try:
            for _ in self._line(self._rest):
                pass
        except StoreUnavailableError as error:
            return error
        except ValueError:
            pass
        return StoreUnavailableError(self._label, "ended a watch")

    def _line(self, line: bytes) -> Iterator[Change]:
        said = json.loads(line)
        if "error" in said:
            error = translate(self._label, 200, line)
            raise StoreUnavailableError(self._label, f"ended a watch ({error})")
        result = said.get("result", {})
        if result.get("canceled"):
            if "compact_revision" in result:
                raise CompactedError(int(result["compact_revision"]))
            reason = result.get("cancel_reason", "no reason given")
            raise StoreUnavailableError(self._label, f"ended a watch ({reason})")
        if result.get("created"):
            self.created += 1
            self.revision = max(self.revision, int(result["header"].get("revision", 0)))
        for event in result.get("events", ()):
            kv = self._keys.kv(event["kv"])
            self.revision = max(self.revision, kv.mod)
            yield Change(kv, event.get("type") == "DELETE")
