"""The PostgreSQL store: the lock table on plain tables, one transaction per step.

Any command can be executed by the *general path* (`steps.py`): `core.table` runs over a row
port (`rows.py`) inside one transaction, whose first flight takes locks and loads rows, and whose
last flight writes, notifies and commits. The common short cases (`shortcuts.py`) are SQL functions
that write the same rows in one round trip, or reply that the general path must be taken.

Steps are serialised by transaction-level advisory locks (sql/functions.sql gives their order), not
by row locks: the row of a free lock does not exist, and a lock that is shared by the steps of a
session must not write to its row. They end with the transaction, so a pooler is safe.

Steps on different locks never write the same row, so they can share a group commit:

  - a token is `epoch + sequence`, drawn under the lock of what is granted and returned after the
    commit. A sequence goes back when a standby that missed writes is promoted: then the server's
    timeline differs from the one in `meta`, and the epoch is raised to the wall clock first;
  - a session has no counters. Count and checksum are computed from its claims at a keep-alive, and
    a released claim leaves its number behind until a keep-alive says that it is finished;
  - what is due is found by index; a step that finds something due reaps it in a separate
    transaction, unless another client is doing so;
  - the log is written only while it has readers. A step that writes it, or reserves a block of
    tokens, takes the gate exclusively and runs alone in its schema.

If a connection breaks before the commit was sent, the step is rolled back; after that the outcome
is unknown, and claim numbers make it safe to send the command again.
"""
