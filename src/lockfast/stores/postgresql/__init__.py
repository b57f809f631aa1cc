"""The PostgreSQL store: the lock table on plain tables, one transaction per step.

Any command can be carried out by the *general path* (`steps.py`): `core.table` runs over a row
port (`rows.py`) inside one transaction, whose first flight takes locks and loads rows, and whose
last flight writes, notifies and commits. The common short cases (`shortcuts.py`) are SQL functions
that leave the same bytes in one round trip, or answer that the general path must be taken.

Steps are serialised by transaction-level advisory locks (sql/functions.sql gives their order), not
by row locks: the row of a free lock does not exist, and a lock that is shared by the steps of a
session must not write to its row. They end with the transaction, so a pooler is safe.

No two steps on different locks write the same row, so their commits go to disk together:

  - a token is `epoch + sequence`, drawn under the lock of what is granted and handed out after the
    commit. A sequence goes back when a standby that missed writes is promoted: then the server's
    timeline differs from the one in `meta`, and the epoch is raised to the wall clock first;
  - a session has no counters. Count and checksum are computed from its claims at a keep-alive, and
    a claim that is gone leaves its number behind until a keep-alive says that it is finished;
  - what is due is found by index; a step that finds something due reaps it in a transaction of its
    own, unless another client is at it;
  - the log is written only while somebody reads it. A step that writes it, or reserves a block of
    tokens, takes the gate exclusively and is alone in its schema.

A connection that breaks before the commit was sent undoes the step; after that the outcome is
unknown, and claim numbers make it safe to send the command again.
"""
