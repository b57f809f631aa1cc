"""Worlds of PostgreSQL: the shipped store over a model of the server.

The border is a flight of SQL statements. Everything above it is the store's own code: which
flights a command needs, the lock table that runs between them, retries, and the meaning of
answers and errors. Below it are the model's parts:

  - `database.py`: tables, sequences, transactions, and what a crash leaves of them;
  - `locks.py`: advisory and row locks, their queues, time limits and deadlocks;
  - `statements.py`: an interpreter for the simple statements that the store sends;
  - `functions.py`: the functions of functions.sql, written again in Python, because the model
    cannot run PL/pgSQL. tests/postgresql/test_model.py sends every flight to a real server
    as well and compares rows and tables;
  - `server.py`: backends, notifications, crashes, a standby;
  - `service.py`: connections, and the store of a simulated client.
"""
