"""A pod that brings the database up to date before it serves. Start as many as you like.

LOCKFAST_URL=redis://localhost python examples/stories/migrating_pod.py shop.db
"""

import sqlite3
import sys

import lockfast
from lockfast.guards import SqliteGuard

WANTED = 1


def migrate(database: sqlite3.Connection) -> bool:
    """Apply what is missing. Return False if nothing was."""
    if database.execute("PRAGMA user_version").fetchone()[0] == WANTED:
        return False
    database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)")
    database.execute(f"PRAGMA user_version = {WANTED}")
    return True


shop = sqlite3.connect(sys.argv[1], timeout=30)
with lockfast.connect(ttl=10) as client, client.lock("shop/migrations") as lease:
    # A pod that was suspended past the end of its lease cannot commit after its successor.
    if lease.execute_with_fence(SqliteGuard(shop), migrate):
        print("migrated")
    else:
        print("nothing to migrate")
print("serving", shop.execute("SELECT count(*) FROM orders").fetchone()[0], "orders")
shop.close()
