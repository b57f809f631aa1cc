"""What the etcd and ZooKeeper stores share: stores that derive the lock table's rows.

Everything about a session is bound to a session of the server, an etcd lease or a ZooKeeper
session, and vanishes with it. Nothing is stored that would have to be repaired then, so the rows of
the lock table are not stored either: a step derives them from what it has read.

A step repeats these until it is committed:

  - read what the command concerns, or assume it (the store's own code);
  - present it to the lock table as rows (`view.py`, extended by each store); if the table needs
    more, read that too;
  - let the table decide, and turn its changes into one conditional write, which checks all that the
    decision rests on (the store's `plan.py`);
  - commit the write, or pause after a conflict (`steps.py`) and try again.

`stored.py` is the form in which claims are stored, `owned.py` what a client remembers about its own
sessions, `machine.py` the clocks and random numbers that a store's network provides.
"""
