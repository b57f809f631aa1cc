"""Real servers broken on purpose: `./dev chaos`.

  run.py      the command line
  case.py     one case: workers against a store under one kind of fault, and the verdict
  worker.py   what each worker process does, with the public API
  witness.py  the resource that the locks protect; its view decides, not that of the clients
  targets.py  the stores, each with its servers and the proxies in front of them; add one here
  faults.py   the faults of workers, connections and servers; add one here
  shim.py     a shifted wall clock and a full disk for a process, without root (shim.c)
  soak.py     many faults over a long time, and what must stay flat
  report.py   the table, and the page with timelines
  docs.py     the table in docs/how-it-is-tested.md

Not part of the wheel. It uses the servers of `tests/servers`.
"""
