"""A process that tries to write under its token to each resource it reads from stdin.

Arguments: library, database, token, and `crash` to die between the write and its commit.
Answers each line with `wrote` or `refused`.
"""

from __future__ import annotations

import os
import sys

from lockfast.errors import StaleTokenError
from lockfast.guards import SqliteGuard
from tests.guards.databases import open_database


def main(library: str, path: str, token: int, *, crash: bool) -> None:
    database = open_database(library, path, wait_ms=30_000)
    guard = SqliteGuard(database)
    for line in sys.stdin:
        resource = line.strip()
        # Deferred on purpose: the guard itself must take the write lock in time.
        database.execute("BEGIN")
        try:
            guard.admit(resource, token)
        except StaleTokenError:
            database.execute("ROLLBACK")
            print("refused", flush=True)
            continue
        database.execute("INSERT INTO writes VALUES (?, ?)", (resource, token))
        if crash:
            os._exit(9)
        database.execute("COMMIT")
        print("wrote", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), crash=sys.argv[4:] == ["crash"])
