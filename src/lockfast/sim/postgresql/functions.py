"""The functions of functions.sql in Python: the same statements, in the same order.

Each is a generator over a transaction. It yields the locks that it waits for, and None between two
statements, where other transactions may commit. Arguments and results are those of the SQL
functions; `json` arguments arrive as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from lockfast.sim.postgresql.database import Row, SqlError, Transaction, Yields
from lockfast.sim.postgresql.locks import Request

US: Final = "\x1f"
FAR_MS: Final = 1152921504606846976
HEADS: Final = (("w", 3), ("h", 17), ("v", 17))
"""How many rows of each line `load` returns."""
CLAIM_COLUMNS: Final = (
    "session", "n", "places", "state", "rank", "actor", "priority", "entered_ms", "token",
    "granted_ms", "until_ms", "max_hold_ms", "lock_delay_ms", "block", "value", "passed", "step",
    "wants", "reason", "by", "window_ms",
)  # fmt: skip
SESSION_COLUMNS: Final = (
    "id", "ttl_ms", "owner", "metadata", "inbox", "process", "opened_ms", "deadline_ms",
    "renewals", "lowest", "watching", "ended", "by", "ending",
)  # fmt: skip
RESOURCE_COLUMNS: Final = (
    "kind", "name", "held", "reserved", "holders", "waiting", "reservations", "sole",
    "converting", "size", "closed_ms", "retained",
)  # fmt: skip
FINISHED: Final = ("[]", "finished", "", "", 0, 0, 0, 0, 0, 0, 0, 1, None, 0, 0, "", "", "", 0, 0)
"""The columns of a claim of which only the number remains."""

Found: TypeAlias = list[tuple[Any, ...]]
Run: TypeAlias = Generator[Yields, Any, Found]
Clock: TypeAlias = Callable[[], int]


class Call(NamedTuple):
    """A transaction and the wall clock of its server."""

    tx: Transaction
    wall_us: Clock

    def now_ms(self, given: int | None) -> int:
        return given if given is not None else self.wall_us() // 1000


def as_text(values: Iterable[Any]) -> str:
    return json.dumps(list(values), ensure_ascii=False)


def claim_row(row: Row) -> str:
    return as_text(row[column] for column in CLAIM_COLUMNS)


def session_row(row: Row) -> str:
    return as_text(row[column] for column in SESSION_COLUMNS)


def resource_row(row: Row) -> str:
    return as_text(row[column] for column in RESOURCE_COLUMNS)


def hex16(number: int) -> str:
    return f"{number:x}".rjust(16, "0")[:16]


def claim_key(session: str, n: int) -> str:
    return f"c{US}{session}{US}{hex16(n)}"


def gate() -> tuple[str, ...]:
    return ("gate",)


def session_key(namespace: str, session: str) -> tuple[str, ...]:
    return ("session", namespace, session)


def resource_key(namespace: str, kind: str, name: str) -> tuple[str, ...]:
    return ("resource", namespace, kind, name)


def reaper_key(namespace: str) -> tuple[str, ...]:
    return ("reaper", namespace)


def locking(namespace: str, session: str, *resource: str) -> Generator[Yields, Any, None]:
    """Request the locks of a shortcut."""
    yield Request(gate(), is_shared=True)
    yield Request(session_key(namespace, session), is_shared=True)
    if resource:
        yield Request(resource_key(namespace, *resource))


# ── what is due, the log, tokens ─────────────────────────────────────────────────────


def is_due(tx: Transaction, namespace: str, now_ms: int) -> bool:
    return (
        any(
            row["deadline_ms"] <= now_ms and row["namespace"] == namespace
            for row in tx.rows("sessions")
        )
        or any(
            0 < row["due_ms"] <= now_ms and row["namespace"] == namespace
            for row in tx.rows("claims")
        )
        or any(
            0 < row["closed_ms"] <= now_ms and row["namespace"] == namespace
            for row in tx.rows("resources")
        )
    )


def is_logged_or_due(tx: Transaction, namespace: str, now_ms: int) -> bool:
    if is_due(tx, namespace, now_ms):
        return True
    log = tx.get("logs", namespace)
    return log is not None and (log["watchers"] > 0 or log["until_ms"] > now_ms)


def keep_log(call: Call, namespace: str, kept_ms: int, given_ms: int | None) -> Run:
    tx = call.tx
    yield Request(gate())
    now_ms = call.now_ms(given_ms)
    log = tx.get("logs", namespace)
    if log is not None and log["watchers"] == 0 and log["until_ms"] <= now_ms:
        for event in list(tx.rows("events")):
            if event["namespace"] == namespace:
                yield from tx.delete("events", namespace, event["position"])
        yield from tx.update("logs", (namespace,), position=log["position"] + 1)
    if (yield from tx.update("logs", (namespace,), until_ms=now_ms + kept_ms)) is None:
        yield from tx.insert("logs", namespace, 0, now_ms + kept_ms, 0)
    return [("",)]


def due(call: Call, namespace: str, given_ms: int | None, most: int) -> Run:
    yield None
    tx, now_ms = call.tx, call.now_ms(given_ms)

    def first(table: str, column: str, since_ms: int) -> list[Row]:
        rows = [
            row
            for row in tx.rows(table)
            if row["namespace"] == namespace and since_ms < row[column] <= now_ms
        ]
        return sorted(rows, key=lambda row: row[column])[:most]

    return [
        *((row["id"], 0, "", "") for row in first("sessions", "deadline_ms", -FAR_MS)),
        *((row["session"], row["n"], "", "") for row in first("claims", "due_ms", 0)),
        *(("", 0, row["kind"], row["name"]) for row in first("resources", "closed_ms", 0)),
    ]  # fmt: skip


def draw_token(call: Call, block: int) -> Generator[Yields, Any, int]:
    meta = call.tx.get("meta", True)
    assert meta is not None
    yield None
    tokens = call.tx.database.sequences["tokens"]
    call.tx.has_drawn = True
    first = tokens.next()
    if block > 1:
        yield None
        tokens.set(first + block - 1)
    token: int = meta["epoch"] + first
    return token


def next_arrival(call: Call) -> int:
    call.tx.has_drawn = True
    return call.tx.database.sequences["arrivals"].next()


def raise_epoch(call: Call, given_us: int | None) -> Run:
    tx = call.tx
    wall_us = given_us if given_us is not None else call.wall_us()
    last = tx.database.sequences["tokens"].last_value
    yield None
    meta = yield from tx.locked("meta", (True,))
    assert meta is not None
    epoch = max(meta["epoch"], wall_us - last)
    yield from tx.update("meta", (True,), epoch=epoch, timeline=tx.database.timeline_text)
    return [(epoch,)]


def is_stale(tx: Transaction) -> bool:
    meta = tx.get("meta", True)
    assert meta is not None
    return bool(tx.database.timeline_text != meta["timeline"])


# ── loading ──────────────────────────────────────────────────────────────────────────


def _claims_and_sessions(
    tx: Transaction, namespace: str, refs: Iterable[tuple[str, int]], sessions: Iterable[str]
) -> Found:
    wanted = dict.fromkeys(refs)
    found: Found = []
    for session, n in wanted:
        row = tx.get("claims", namespace, session, n)
        if row is not None:
            found.append((claim_key(session, n), claim_row(row)))
    for session in dict.fromkeys([*(session for session, _ in wanted), *sessions]):
        row = tx.get("sessions", namespace, session)
        if row is not None:
            found.append((f"s{US}{session}", session_row(row)))
    return found


def _pairs(text: str) -> list[tuple[Any, Any]]:
    return [(pair[0], pair[1]) for pair in json.loads(text)]


def load_claims(call: Call, namespace: str, claims: str, sessions: str) -> Run:
    yield None
    return _claims_and_sessions(call.tx, namespace, _pairs(claims), json.loads(sessions))


def line_of(tx: Transaction, namespace: str, kind: str, name: str, line: str) -> list[Row]:
    """Return the rows of one line in order."""
    rows = [
        row
        for row in tx.rows("lines")
        if row["name"] == name
        and row["line"] == line
        and row["kind"] == kind
        and row["namespace"] == namespace
    ]
    return sorted(rows, key=lambda row: row["rank"]) if len(rows) > 1 else rows


def load_line(
    call: Call, namespace: str, kind: str, name: str, line: str, after: str, most: int
) -> Run:
    def part() -> list[Row]:
        rows = line_of(call.tx, namespace, kind, name, line)
        return [row for row in rows if row["rank"] > after][:most]

    found: Found = [(f"l{US}{row['rank']}", as_text((row["session"], row["n"]))) for row in part()]
    yield None
    refs = [(row["session"], row["n"]) for row in part()]
    yield None
    return found + _claims_and_sessions(call.tx, namespace, refs, ())


def load(
    call: Call,
    namespace: str,
    sessions: str,
    resources: str,
    claims: str,
    places: bool,
    given_ms: int | None,
) -> Run:
    tx, now_ms = call.tx, call.now_ms(given_ms)
    log = tx.get("logs", namespace) or {"position": None, "until_ms": None, "watchers": None}
    clock = (
        now_ms, call.wall_us(), is_due(tx, namespace, now_ms),
        log["position"], log["until_ms"], log["watchers"],
    )  # fmt: skip
    yield None
    found: Found = [("clock", as_text(clock))]
    given = _pairs(claims)
    wanted = dict.fromkeys(_pairs(resources))
    for claim in given if places else ():
        row = tx.get("claims", namespace, *claim)
        if row is not None:
            wanted.update(
                dict.fromkeys((place[0], place[1]) for place in json.loads(row["places"]))
            )
    refs: list[tuple[str, int]] = []
    for kind, name in wanted:
        row = tx.get("resources", namespace, kind, name)
        if row is not None:
            found.append((f"r{US}{kind}{US}{name}", resource_row(row)))
            _load_heads(tx, row, found, refs)
    return found + _claims_and_sessions(tx, namespace, [*refs, *given], json.loads(sessions))


def _load_heads(tx: Transaction, resource: Row, found: Found, refs: list[tuple[str, int]]) -> None:
    namespace, kind, name = resource["namespace"], resource["kind"], resource["name"]
    for line, most in HEADS:
        for row in line_of(tx, namespace, kind, name, line)[:most]:
            key = f"{line}{US}{kind}{US}{name}{US}{row['rank']}"
            found.append((key, as_text((row["session"], row["n"]))))
            refs.append((row["session"], row["n"]))
    if resource["sole"]:
        _, session, n = resource["sole"].split(US)
        refs.append((session, int(n)))
    if resource["converting"]:
        session, n = resource["converting"].split(US)[:2]
        refs.append((session, int(n)))


def begin_step(
    call: Call,
    namespace: str,
    alone: bool,
    shared: str,
    exclusive: str,
    resources: str,
    claims: str,
    is_try: bool,
    given_ms: int | None,
) -> Run:
    tx = call.tx
    tx.idle_s = 5
    found: Found = []
    sessions = {(session, True) for session in json.loads(shared)}
    sessions |= {(session, False) for session in json.loads(exclusive)}
    wanted = [(gate(), not alone)]
    wanted += [(session_key(namespace, name), is_shared) for name, is_shared in sorted(sessions)]
    wanted += [(resource_key(namespace, *pair), False) for pair in sorted(_pairs(resources))]
    for key, is_shared in wanted:
        if not (yield Request(key, is_shared, is_try)):
            return [("taken", None)]
    if is_stale(tx):
        found.append(("stale", None))
    else:
        arrival = next_arrival(call)
        token = yield from draw_token(call, 1)
        found.append(("drawn", as_text((arrival, token))))
    yield None
    names = as_text(dict.fromkeys(session for session, _ in sorted(sessions)))
    return found + (yield from load(call, namespace, names, resources, claims, False, given_ms))


def account(call: Call, namespace: str, session: str) -> Run:
    yield None
    rows = [
        row
        for row in call.tx.rows("claims")
        if row["session"] == session
        and row["namespace"] == namespace
        and row["state"] in ("holding", "waiting")
    ]
    checksum = 0
    for row in rows:
        token = row["token"] if row["state"] == "holding" else 0
        checksum += ((row["n"] * 40503 + token) % 67108859) ** 2 % 4294967296
    return [(len(rows), checksum % 4294967296)]


# ── the short paths ──────────────────────────────────────────────────────────────────


def _is_over(session: Row | None, now_ms: int) -> bool:
    return session is None or session["ended"] != "" or session["deadline_ms"] <= now_ms


def _strict(row: Row | None) -> Row:
    if row is None:
        raise SqlError("P0002", "query returned no rows")
    return row


def enter(
    call: Call,
    namespace: str,
    session: str,
    n: int,
    kind: str,
    name: str,
    mode: str,
    places: str,
    actor: str,
    queue: bool,
    priority: int,
    head_start_ms: int,
    lock_delay_ms: int,
    given_ms: int | None,
) -> Run:
    tx = call.tx
    yield from locking(namespace, session, kind, name)
    general: Found = [("general", None, None, None)]
    now_ms = call.now_ms(given_ms)
    own = tx.get("sessions", namespace, session)
    yield None
    if (
        own is None
        or _is_over(own, now_ms)
        or n < own["lowest"]
        or n - own["lowest"] >= 100000
        or is_logged_or_due(tx, namespace, now_ms)
        or tx.get("claims", namespace, session, n) is not None
    ):
        return general
    yield None
    resource = tx.get("resources", namespace, kind, name)
    if resource is None:
        if is_stale(tx):
            return general
        token = yield from draw_token(call, 1)
        rank = _rank(call, now_ms - head_start_ms)
        yield from tx.insert(
            "claims", namespace, session, n, places, "holding", rank, actor, priority, now_ms,
            token, now_ms, 0, 0, lock_delay_ms, 1, None, 0, 0, "", "", "", 0, 0,
        )  # fmt: skip
        yield None
        yield from tx.insert(
            "resources", namespace, kind, name, f'{{"{mode}":1}}', "{}", 1, 0, 0,
            f"{rank}{US}{session}{US}{n}", "", 0, 0, 0,
        )  # fmt: skip
        return [("granted", token, None, None)]
    if (
        mode != "exclusive"
        or resource["holders"] == 0
        or resource["reservations"] > 0
        or resource["converting"] != ""
        or resource["closed_ms"] > 0
        or resource["retained"] > 0
        or resource["waiting"] >= 100000
        or (resource["waiting"] == 0 and resource["sole"] == "")
    ):
        return general
    rank = _rank(call, now_ms - head_start_ms)
    if resource["waiting"] > 0:
        last = line_of(tx, namespace, kind, name, "w")[-1]
        if last["rank"] > rank:
            return general
        ahead = last["session"], last["n"]
    else:
        _, holder, number = resource["sole"].split(US)
        ahead = holder, int(number)
    yield None
    claim = _strict(tx.get("claims", namespace, *ahead))
    yield None
    other = _strict(tx.get("sessions", namespace, ahead[0]))
    blockers = as_text([_blocker(claim, other, now_ms)])
    if not queue:
        tx.is_durable = False
        yield from tx.insert("claims", namespace, session, n, *FINISHED)
        return [("busy", None, None, blockers)]
    over_ms = min(FAR_MS, other["deadline_ms"])
    if claim["until_ms"] > 0:
        over_ms = min(over_ms, claim["until_ms"])
    yield from tx.insert(
        "claims", namespace, session, n, places, "waiting", rank, actor, priority, now_ms,
        0, 0, 0, 0, lock_delay_ms, 1, None, 0, 0, "", "", "", 0, 0,
    )  # fmt: skip
    yield None
    yield from tx.insert("lines", namespace, kind, name, "w", rank, session, n)
    yield None
    changed = {"waiting": resource["waiting"] + 1}
    yield from tx.update("resources", (namespace, kind, name), **changed)
    return [("queued", None, max(1, over_ms - now_ms), blockers)]


def _rank(call: Call, since_ms: int) -> str:
    return hex16(since_ms + 4611686018427387904) + hex16(next_arrival(call))


def _blocker(claim: Row, session: Row, now_ms: int) -> list[Any]:
    holds = claim["state"] == "holding"
    since_ms = claim["granted_ms"] if holds else claim["entered_ms"]
    return [
        claim["session"], claim["n"], session["owner"], session["process"], session["renewals"],
        holds, claim["token"], now_ms - since_ms,
    ]  # fmt: skip


def leave(
    call: Call,
    namespace: str,
    session: str,
    n: int,
    kind: str,
    name: str,
    heir: str,
    channel: str,
    given_ms: int | None,
) -> Run:
    tx = call.tx
    yield from locking(namespace, session, kind, name)
    general: Found = [("general", None, None, None, None)]
    now_ms = call.now_ms(given_ms)
    own = tx.get("sessions", namespace, session)
    yield None
    if _is_over(own, now_ms) or is_logged_or_due(tx, namespace, now_ms):
        return general
    claim = tx.get("claims", namespace, session, n)
    yield None
    if (
        claim is None
        or claim["state"] != "holding"
        or claim["until_ms"] > 0
        or claim["block"] > 1
        or "],[" in claim["places"]
    ):
        return general
    resource = tx.get("resources", namespace, kind, name)
    yield None
    if (
        resource is None
        or resource["reservations"] > 0
        or resource["closed_ms"] > 0
        or resource["converting"] != ""
        or resource["sole"] != f"{claim['rank']}{US}{session}{US}{n}"
    ):
        return general
    told: tuple[Any, ...] = (None, None, None, None)
    if resource["waiting"] == 0:
        yield from tx.delete("resources", namespace, kind, name)
    else:
        granted = yield from _hand_over(call, resource, heir, channel, now_ms)
        if granted is None:
            return [("general", *told)]
        told = granted
    yield None
    yield from tx.update(
        "claims", (namespace, session, n),
        state="finished", places="[]", rank="", actor="", value=None, due_ms=0,
    )  # fmt: skip
    return [("done", *told)]


def _hand_over(
    call: Call, resource: Row, heir: str, channel: str, now_ms: int
) -> Generator[Yields, Any, tuple[Any, ...] | None]:
    tx = call.tx
    namespace, kind, name = resource["namespace"], resource["kind"], resource["name"]
    first = line_of(tx, namespace, kind, name, "w")[0]
    yield None
    key = (namespace, first["session"], first["n"])
    claim = _strict(tx.get("claims", *key))
    yield None
    other = _strict(tx.get("sessions", namespace, first["session"]))
    if (
        claim["places"] != heir
        or claim["max_hold_ms"] > 0
        or claim["block"] > 1
        or claim["window_ms"] > 0
        or claim["value"] is not None
        or other["ended"] != ""
        or is_stale(tx)
    ):
        return None
    token = yield from draw_token(call, 1)
    yield from tx.delete("lines", namespace, kind, name, "w", first["rank"])
    yield None
    yield from tx.update("claims", key, state="holding", token=token, granted_ms=now_ms)
    yield None
    yield from tx.update(
        "resources", (namespace, kind, name),
        held='{"exclusive":1}', waiting=resource["waiting"] - 1,
        sole=f"{claim['rank']}{US}{first['session']}{US}{first['n']}",
    )  # fmt: skip
    target, _, secret = other["inbox"].partition(" ")
    if target not in ("", channel):
        text = f"{secret} {first['session']} {first['n']} granted {token}"
        tx.notices[target, text] = None
    return other["inbox"], first["session"], first["n"], token


def renew(
    call: Call,
    namespace: str,
    session: str,
    claims: int,
    checksum: int,
    lowest: int,
    given_ms: int | None,
) -> Run:
    tx = call.tx
    yield from locking(namespace, session)
    general: Found = [("general", None)]
    now_ms = call.now_ms(given_ms)
    if is_logged_or_due(tx, namespace, now_ms):
        return general
    yield None
    if _is_over(tx.get("sessions", namespace, session), now_ms):
        return general
    own = yield from tx.locked("sessions", (namespace, session))
    if own is None or _is_over(own, now_ms):
        return general
    kept = max(own["lowest"], lowest)
    yield from tx.update(
        "sessions", (namespace, session),
        deadline_ms=now_ms + own["ttl_ms"], renewals=own["renewals"] + 1, lowest=kept,
    )  # fmt: skip
    yield None
    for row in list(tx.rows("claims")):
        if (
            row["session"] == session
            and row["namespace"] == namespace
            and row["n"] < kept
            and row["state"] == "finished"
        ):
            yield from tx.delete("claims", namespace, session, row["n"])
    ((count, found),) = yield from account(call, namespace, session)
    return [("renewed", count == claims and found == checksum)]


FUNCTIONS: Final[dict[str, Callable[..., Run]]] = {
    "account": account,
    "begin_step": begin_step,
    "due": due,
    "enter": enter,
    "keep_log": keep_log,
    "leave": leave,
    "load": load,
    "load_claims": load_claims,
    "load_line": load_line,
    "raise_epoch": raise_epoch,
    "renew": renew,
}
