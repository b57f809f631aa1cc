"""One step as a transaction: what must still be so, what is written, what else is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.core.commands import HOLDING, Wake
from lockfast.core.lines import FAR_MS
from lockfast.core.modes import EXCLUSIVE
from lockfast.core.rows import Claim, ResourceRow, Session
from lockfast.stores.etcd.knowledge import Knowledge, Want
from lockfast.stores.etcd.leases import sentence_of
from lockfast.stores.etcd.requests import OPERATIONS_MAX, Json, Keys, Kv
from lockfast.stores.etcd.rows import (
    EPOCH_KEY,
    LOG_KEY,
    RELATIVE,
    STRIDE,
    Base,
    Living,
    Owner,
    Record,
    alone_prefix,
    as_simple,
    decode,
    encode,
    end_of,
    inbox_key,
    living_key,
    marker_of,
    packed_claim,
    packed_event,
    packed_resource,
    packed_token,
    record_key,
    resource_of,
    stored_key,
    table_key,
    waiting_of,
    watcher_key,
)
from lockfast.stores.etcd.view import View, as_stored

EPOCH_LAG_US: Final = 1_000_000
"""The epoch follows the clock at this distance, so that not every session raises it."""

TOLD_MAX: Final = 6
"""As many of those who follow are told to whoever is granted."""


class TooLargeError(Exception):
    """More than one transaction may do."""


class Epoch:
    """The epoch a step gives tokens in: as stored, or raised by the step."""

    def __init__(self, known: Knowledge, wall_us: int, *, opens: bool) -> None:
        stored = known.get(EPOCH_KEY)
        self._base = Base(*decode(stored.value)) if stored is not None else Base(-1)
        self.value = self._base.epoch
        self.logs = self._base.log_until_ms > wall_us // 1000
        native = STRIDE * known.revision
        lags = self.value + native + EPOCH_LAG_US < wall_us
        if stored is None or (opens and lags):
            self.value = max(self.value, wall_us - native, 0)

    def spend(self, tokens: int) -> str:
        """What is to be stored, if the step gives so many tokens; "": nothing."""
        after = self.value + (tokens if tokens > STRIDE else 0)
        return encode(self._base._replace(epoch=after)) if after != self._base.epoch else ""


class Plan:
    """The transaction of one step."""

    def __init__(self, keys: Keys, view: View, lease_of: Callable[[str], int]) -> None:
        self.keys = keys
        self.view = view
        self.compares: dict[str, Json] = {}
        self.puts: dict[str, tuple[str, int]] = {}
        self.deletes: dict[str, str] = {}
        """Keys, each with the end of its range if it is one."""
        self.epoch = 0
        self.may_be_alone = False
        """Whether a claim that is granted at once needs no row of its own."""
        self.word, self.has_word = "", False
        """The word that says where that is, and whether it has been left before."""
        self._alone: set[str] = set()
        self.logs = False
        """Whether somebody reads the log."""
        self._lease_of = lease_of

    def build(self, wakes: Iterable[Wake], wall_us: int) -> None:
        """Work out everything; `wakes` are to be sent with it."""
        view = self.view
        command = view.command
        opens = getattr(command, "open", None) is not None or isinstance(command, c.Open)
        tokens = view.meta.token - RELATIVE + 1
        if tokens or opens or view.log:
            epoch = Epoch(view.known, wall_us, opens=opens)
            self.epoch, self.logs = epoch.value, epoch.logs
            self._same(EPOCH_KEY)
            after = epoch.spend(tokens) if tokens or opens else ""
            if after:
                self.puts[EPOCH_KEY] = (after, 0)
        self._sessions()
        self._claims()
        self._lines()
        self._resources()
        for key, row in view.changes.items():
            if key[0] == "d" and row is not None:
                self.puts[key] = ("", 0)
            elif key[0] == "d":
                self.deletes[key] = ""
        self._inboxes(wakes)
        if view.log and self.logs:
            self.puts[LOG_KEY] = (encode([packed_event(e, self.epoch) for e in view.log]), 0)

    def _same(self, key: str) -> None:
        self.compares[key] = self.keys.unchanged(key, self.view.known.mod(key))

    # ── sessions ─────────────────────────────────────────────────────────────────────

    def _sessions(self) -> None:
        own = getattr(self.view.command, "session", "")
        if own and self.view.known.mod(living_key(own)) and type(self.view.command) in _OF_OWNER:
            self._same(living_key(own))
        for key, row in self.view.changes.items():
            if key[0] == "s" and key[2:] not in self.view.approximate:
                if row is None:
                    self._same(record_key(key[2:]))
                    for gone in (record_key(key[2:]), inbox_key(key[2:])):
                        self.deletes[gone] = ""
                elif isinstance(row, Session):
                    (self._condemn if row.id in self.view.unfinished else self._session)(row)
            elif key[0] == "x":
                if row is None:
                    self.deletes[key] = ""
                else:
                    self.puts[key] = ("", self._lease_of(key[2:]))

    def _session(self, row: Session) -> None:
        known = self.view.known
        record_at, living_at = record_key(row.id), living_key(row.id)
        stored, living = known.kvs.get(record_at), known.kvs.get(living_at)
        record = Record(*row_static(row))
        before = Living(*decode(living.value)) if living is not None else None
        if row.ended:
            if stored is None or not Record(*decode(stored.value)).ended:
                self._end(row, record)
            return
        lowest = before.lowest if before is not None else 0
        command = self.view.command
        if isinstance(command, c.Renew) and command.session == row.id:
            lowest = max(lowest, row.highest + 1)
        lives = Living(row.renewals, row.deadline_ms - row.ttl_ms, lowest, row.watching)
        if stored is None:
            self._same(record_at)
            self.puts[record_at] = (encode(record), 0)
        elif before is not None and lives[2:] + lives[:1] == before[2:] + before[:1]:
            return
        self._same(living_at)
        self.puts[living_at] = (encode(lives), self._lease_of(row.id))

    def _end(self, row: Session, record: Record) -> None:
        ended = record._replace(
            ended=row.ended, by=row.by, forgotten_ms=row.deadline_ms, renewals=row.renewals
        )
        for key in (record_key(row.id), living_key(row.id)):
            self._same(key)
        self.puts[record_key(row.id)] = (encode(ended), 0)
        for key in (living_key(row.id), inbox_key(row.id), watcher_key(row.id)):
            self.deletes[key] = ""
        alone = alone_prefix(row.id)
        self.deletes[alone] = end_of(alone)

    def _condemn(self, row: Session) -> None:
        """Take a session's life; its claims follow in other steps, if need be of others."""
        known = self.view.known
        record_at, living_at = record_key(row.id), living_key(row.id)
        self._same(record_at)
        self._same(living_at)
        if known.mod(living_at):
            record = Record(*decode(known.kvs[record_at].value))
            sentence = sentence_of(row, self.view.command)
            self.puts[record_at] = (encode(record._replace(by=row.by, sentence=sentence)), 0)
            self.deletes[living_at] = ""

    # ── claims and lines ─────────────────────────────────────────────────────────────

    def _claims(self) -> None:
        view = self.view
        for key, row in view.changes.items():
            if key[0] != "c":
                continue
            if isinstance(row, Claim) and self._is_alone(key, row):
                self._alone.add(key)
                if not self.has_word:
                    self.puts[self.word] = ("", 0)
                continue
            if key in view.alone and row is None:
                continue
            if view.known.knows(key):
                self._same(key)
            if isinstance(row, Claim):
                self.puts[key] = (encode(self._packed(row)), 0)
                continue
            self.deletes[key] = ""

    def _is_alone(self, key: str, claim: Claim) -> bool:
        """Whether a new claim holds alone: then the row of the resource says all of it."""
        command = self.view.command
        if not (self.may_be_alone and isinstance(command, c.Enter)):
            return False
        if key != r.claim_key(*command[:2]) or len(claim.places) != 1 or claim.until_ms:
            return False
        at = r.resource_key(*claim.places[0][:2])
        if self.view.touched.get(stored_key(at)) is not None:
            return False  # others stand in line there
        resource: ResourceRow | None = self.view.get(at)
        return claim.state == HOLDING and resource is not None and bool(resource.sole)

    def fence(self, session: str) -> None:
        """Let nothing be carried out that was sent before: it compares the session's key."""
        living = self.view.known.kvs.get(living_key(session))
        if living is not None:
            self._same(living.key)
            self.puts.setdefault(living.key, (living.value, self._lease_of(session)))

    def _carried(self, ref: str) -> list[Any] | None:
        """The claim a line's row carries, if it may."""
        claim = self.view.get(r.claim_key(*r.parse_ref(ref)))
        if not isinstance(claim, Claim) or len(claim.places) != 1:
            return None
        return self._packed(claim)

    def _packed(self, claim: Claim) -> list[Any]:
        owner = self.view.owners.get(claim.session)
        if owner is None:
            row: Session = self.view.get(r.session_key(claim.session))
            owner = Owner(row.owner, row.inbox, row.process, row.ttl_ms)
        return packed_claim(claim, owner, self.epoch)

    def _lines(self) -> None:
        rewritten: dict[str, Any] = {}
        for row in list(self.view.changes.values()):
            if isinstance(row, Claim) and len(row.places) == 1 and row.state == HOLDING:
                kind, name = row.places[0][:2]
                key = r.line_prefix("h", kind, name) + row.rank
                if not self.view.get(r.resource_key(kind, name)).sole:
                    rewritten[key] = r.claim_ref(row.session, row.n)
        for key, row in {**rewritten, **self.view.changes}.items():
            if key[0] in "hvw":
                stored = stored_key(key)
                if row is None:
                    self.deletes[stored] = ""
                else:
                    carried = self._carried(str(row))
                    self.puts[stored] = (encode([row, carried]), 0)
                    claim = r.claim_key(*r.parse_ref(str(row)))
                    if claim in self.view.alone and carried is not None:
                        self.puts.setdefault(claim, (encode(carried), 0))  # it has company now

    def _resources(self) -> None:
        for prefix, before in self.view.touched.items():
            key = table_key(prefix)
            row: ResourceRow | None = self.view.get(key)
            self._same(prefix)
            if row is not None and self._gives_up(prefix, before, row):
                continue
            self._line_as_read(prefix, before, row)
            written = any(
                resource_of(k) == prefix for k in (*self.puts, *self.deletes) if k[0] == "r"
            )
            holder_changed = row is not None and self._sole_changed(row)
            if row is None:
                if before is not None:
                    self.deletes[prefix] = ""
                self._mark(prefix, False)
            elif written or holder_changed or before != as_stored(row):
                self.puts[prefix] = (self._packed_resource(row), 0)
                closed = row.closed_ms > self.view.now_ms
                self._mark(prefix, bool(row.reservations or row.kept or row.converting or closed))

    def _packed_resource(self, row: ResourceRow) -> str:
        if not row.sole:
            return packed_resource(row, None)
        ref = row.sole.split(r.SEPARATOR, 1)[1]
        key = r.claim_key(*r.parse_ref(ref))
        is_alone = key in self._alone or (key in self.view.alone and key not in self.puts)
        return packed_resource(row, self._carried(ref), is_alone=is_alone)

    def _sole_changed(self, row: ResourceRow) -> bool:
        if not row.sole:
            return False
        return r.claim_key(*r.parse_ref(row.sole.split(r.SEPARATOR, 1)[1])) in self.view.changes

    def _mark(self, prefix: str, marked: bool) -> None:
        marker = marker_of(prefix)
        there = marker in self.view.known.kvs
        if marked and not there:
            self.puts[marker] = ("", 0)
        elif there and not marked:
            self.deletes[marker] = ""

    def _gives_up(self, prefix: str, before: tuple[Any, ...] | None, row: ResourceRow) -> bool:
        """Whether all that happens is that somebody leaves the line of an exclusive holder.

        Nobody moves then, whoever else comes or goes: so the resource's row is left as it is,
        and those who give up do not get in each other's way. Hand-overs compare whom they let
        in, and whom they stop at.
        """
        if not isinstance(self.view.command, c.Leave) or before != as_stored(row):
            return False
        if not row.sole or row.held != {EXCLUSIVE: 1} or not as_simple(row):
            return False
        written = [k for k in (*self.puts, *self.deletes) if k[0] == "r"]
        if len(written) != 1 or not written[0].startswith(waiting_of(prefix)):
            return False
        claim = r.claim_key(*self.view.command[:2])
        seen = [key for key in (written[0], claim) if self.view.known.mod(key)]
        for key in seen:
            self._same(key)  # it still waits
        return written[0] in self.deletes and bool(seen)

    def _line_as_read(
        self, prefix: str, before: tuple[Any, ...] | None, row: ResourceRow | None
    ) -> None:
        """Others may come and go without touching the resource: not before those we saw."""
        if before is None:
            return  # nobody stands in line where nobody holds
        line = waiting_of(prefix)
        if row is None or not row.holders:
            upto = end_of(line)
        elif prefix in self.view.consumed:
            upto = self.view.consumed[prefix]
        elif self.view.known.between(line, end_of(line)):
            return
        else:
            upto = end_of(line)
        revision = self.view.known.revision
        self.compares[line] = self.keys.nothing_since(line, upto, revision)
        for key in self.view.known.between(line, upto):
            self._same(key)

    def _inboxes(self, wakes: Iterable[Wake]) -> None:
        words: dict[str, list[list[Any]]] = {}
        for wake in wakes:
            if wake.inbox and record_key(wake.session) not in self.deletes:
                word = [wake.n, wake.what, packed_token(wake.token, self.epoch)]
                if wake.what == c.WAKE_GRANTED:
                    word.append(self._line_of(wake))
                words.setdefault(wake.session, []).append(word)
        for session, said in words.items():
            self.puts[inbox_key(session)] = (encode(said), 0)
            self.deletes.pop(inbox_key(session), None)

    def _line_of(self, wake: Wake) -> list[Any] | None:
        """The line a claim was granted in, for when it leaves: then it need not read it."""
        claim = self.view.get(r.claim_key(wake.session, wake.n))
        if not isinstance(claim, Claim) or len(claim.places) != 1:
            return None
        prefix = stored_key(r.resource_key(*claim.places[0][:2]))
        line = waiting_of(prefix)
        known = self.view.known
        if not self.view.get(table_key(prefix)).sole or marker_of(prefix) in known.kvs:
            return None
        edge = known.known_up_to(line, end_of(line))
        follows = [key for key in known.between(line, edge) if key not in self.deletes]
        more = edge < end_of(line) or len(follows) > TOLD_MAX
        if (more and not follows) or any(key.startswith(line) for key in self.puts):
            return None
        told = [known.kvs[key][:3] for key in follows[:TOLD_MAX]]
        return [prefix, self.puts[prefix][0], known.revision, more, *told]

    # ── as JSON ──────────────────────────────────────────────────────────────────────

    @property
    def is_alone(self) -> bool:
        """Whether the claim that enters has no row of its own."""
        return bool(self._alone)

    @property
    def writes(self) -> bool:
        return bool(self.puts or self.deletes)

    def opens(self, session: str) -> bool:
        """Whether the step begins a session."""
        living = living_key(session)
        return living in self.puts and not self.view.known.mod(living)

    def wants(self, first: Iterable[Want]) -> list[Want]:
        """What to read if it is not as it was believed to be, beside what is sure to be needed."""
        keys = [key for key in self.compares if key[0] != "r"]
        resources = (Want.resource(prefix) for prefix in self.view.touched)
        return list(dict.fromkeys([*first, *map(Want, keys), *resources]))[:OPERATIONS_MAX]

    def operations(self, *, looks_for_due: bool = True) -> list[Json]:
        keys = self.keys
        for key in self.puts:
            self.deletes.pop(key, None)
        made = [keys.put(key, *value) for key, value in self.puts.items()]
        made += [keys.delete(key, stop) for key, stop in self.deletes.items()]
        if looks_for_due:
            made.append(due_range(keys))
        if max(len(made), len(self.compares), len(self.view.touched) + 8) > OPERATIONS_MAX:
            raise TooLargeError
        return made

    def known_after(self, revision: int) -> Knowledge:
        """What is known once it is done.

        Of the lines it is what was read: others may have joined them before `revision`.
        """
        known = self.view.known
        for key in self.deletes:
            if key[0] in "rc":
                self._count(known, key, -1)
                known.remove(key)
                known.assume(key)
        for key, (value, _) in self.puts.items():
            self._count(known, key, 1)
            known.add(Kv(key, value, revision))
        return known

    def _count(self, known: Knowledge, key: str, change: int) -> None:
        prefix = resource_of(key) if key[0] == "r" else ""
        if prefix and (key in known.kvs) == (change < 0):
            known.counts[prefix] = known.counts.get(prefix, 0) + change

    def due_ms(self) -> int:
        """When the first of those things ends by itself that this step has written."""
        dues = (r.due_at_ms(key) for key in self.puts if key[0] == "d")
        return min(dues, default=FAR_MS)


def row_static(row: Session) -> tuple[Any, ...]:
    return (row.ttl_ms, row.owner, row.metadata, row.inbox, row.process, row.opened_ms)


def due_range(keys: Keys) -> Json:
    """A read of what ends next by itself."""
    return keys.range(r.DUE_PREFIX, r.after_prefix(r.DUE_PREFIX), 1, keys_only=True)


def first_due_ms(found: list[Kv]) -> int:
    """When the next thing ends by itself."""
    return r.due_at_ms(found[0].key) if found else FAR_MS


_OF_OWNER: Final = frozenset(
    (c.Open, c.Enter, c.Leave, c.Convert, c.Proclaim, c.Adopt, c.Renew, c.Watch)
)
"""Commands that a session gives for itself: it has to live when they are carried out."""
