# What docs/guards.md takes for granted: a client, and a database with orders.
import atexit
import sqlite3

import lockfast

client = lockfast.connect("memory://guards-page")
connection = sqlite3.connect(":memory:")
connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)")
connection.execute("INSERT INTO orders VALUES (42, 'open')")
connection.commit()
atexit.register(connection.close)
