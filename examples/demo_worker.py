"""One process of the demo: in each turn it acquires the lock and adds 1 to a balance.

    python examples/demo_worker.py NAME DIRECTORY TURNS TTL [SLOW_TURN]

It reports what it does on standard output, one JSON object per line. In its slow turn it
waits for an answer (a line on standard input) between reading and writing: that is where
the demo suspends it.
"""

import json
import os
import sqlite3
import sys
import time
from pathlib import Path

import lockfast
from lockfast.guards import SqliteGuard

WORK_SECONDS = 0.16


def take_turn(lock: lockfast.Lock, ledger: sqlite3.Connection, slow: bool) -> None:
    tell("asks")
    with lock as lease:
        [(balance,)] = ledger.execute("SELECT balance FROM account").fetchall()
        tell("holds", token=lease.token, balance=balance, slow=slow)
        if slow:
            hear()
        else:
            lease.lost.wait(WORK_SECONDS)  # work that ends early if the lease is lost
        if lease.lost.is_set():
            # A careful program stops here, with `lease.check()`. This one continues, as
            # if it had been suspended a moment later: between this check and its write.
            tell("lost", token=lease.token, state=lease.state)
        with ledger:  # one transaction: the guard's check and the write
            SqliteGuard(ledger).admit("ledger", lease.token)
            ledger.execute("UPDATE account SET balance = ?", (balance + 1,))
            ledger.execute("INSERT INTO entries (token) VALUES (?)", (lease.token,))
        tell("wrote", token=lease.token, balance=balance + 1)
    tell("released", token=lease.token)


def tell(what: str, **values: object) -> None:
    try:
        print(json.dumps({"at_ns": time.monotonic_ns(), "what": what, **values}), flush=True)
    except BrokenPipeError:  # the demo has ended
        os._exit(1)


def hear() -> None:
    if not sys.stdin.readline():
        os._exit(1)


def main(name: str, directory: str, turns: str, ttl: str, slow_turn: str = "0") -> None:
    url = f"sqlite://{Path(directory, 'locks.db')}"
    ledger = sqlite3.connect(Path(directory, "ledger.db"), timeout=10)
    with lockfast.connect(url, ttl=float(ttl), owner=name) as client:
        lock = client.lock("ledger")
        tell("ready")
        hear()
        turn = 1
        while turn <= int(turns):
            try:
                take_turn(lock, ledger, slow=turn == int(slow_turn))
                turn += 1
            except lockfast.StaleTokenError as refused:
                tell("refused", token=refused.token, floor=refused.floor, error=str(refused))
                slow_turn = "0"  # the answer has arrived: repeat this turn
    ledger.close()
    tell("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
