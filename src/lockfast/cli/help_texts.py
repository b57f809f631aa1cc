"""What `lockfast --help` and `lockfast COMMAND --help` print below the options."""

from __future__ import annotations

from typing import Final

DESCRIPTION: Final = "Locks between processes and machines, with a fencing token on every grant."
LOCKFAST: Final = """\
store:
  --url URL, else the URL in --url-file FILE, else LOCKFAST_URL, else the URL
  in the file LOCKFAST_URL_FILE, else a lock file of this user. `ps` shows a
  password in --url for a moment, but never one in a file or the environment.

examples:
  lockfast run nightly-report -- ./report.sh   run a command under a lock
  lockfast ls                                  who holds which lock
  lockfast show nightly-report                 its holder, its queue
  lockfast COMMAND --help                      options, exit codes, examples
"""
RUN: Final = """\
CMD finds in its environment:
  LOCKFAST_LOCK      the lock's name
  LOCKFAST_FENCE     the fencing token; pass it to whatever CMD writes to
  LOCKFAST_SESSION   the session that holds the lock

durations (S) are seconds, or for example 250ms, 90s, 5m, 1h30m

exit codes:
  the exit code of CMD, or 128 + n if signal n ended it
  2    wrong usage                  75   the lock was not obtained
  69   the store is unreachable     76   the lease was lost and CMD was stopped
  77   the store denied access      126  CMD is not executable
                                    127  CMD was not found

examples:
  lockfast run nightly-report -- ./report.sh --all
  lockfast run deploy --no-wait -- make deploy || echo "already running"
  lockfast run import --timeout 5m --ttl 60s --grace 20s -- python import.py
"""
LS: Final = """\
examples:
  lockfast ls                        every lock in use
  lockfast ls orders/                those whose names begin with orders/
  lockfast ls --kind semaphore       semaphores only
  lockfast ls --json | jq -r '.[].name'
"""
SHOW: Final = """\
exit codes: 0 if the lock is held, 1 if it is free

examples:
  lockfast show orders/42
  lockfast show --kind semaphore api
  lockfast show deploy >/dev/null || echo "nobody is deploying"
"""
SESSIONS: Final = """\
examples:
  lockfast sessions
  lockfast sessions --all --json | jq -r '.[] | select(.ended != "") | .owner'
"""
DEADLOCKS: Final = """\
Clients look for deadlocks themselves, after `deadlock_after` seconds of
waiting, and end the wait of one of those involved. What this command shows
is younger than that, or belongs to clients that look less often.

exit codes: 0 if there are none, 1 if there are
"""
WATCH: Final = """\
With --json every line is an object with `what` and `position`. `what` is an
event, or `gap` if events were missed; then `locks` is the state to continue
from.

examples:
  lockfast watch orders/
  lockfast watch --json | jq -r 'select(.what == "expired") | .owner'
"""
STATS: Final = """\
The figures come from the store's event log. So they cover all clients, but
only as far back as the log reaches; some stores write it only while it is
read. They lack what no log has: try_acquire that found a lock taken, refused
tokens, and the time of requests. client.stats() has those, for one client.

examples:
  lockfast stats                     every lock, after watching for 5 s
  lockfast stats orders/ --for 1m
  lockfast stats --json | jq '.overall["1m"].acquisition.p99'
"""
REPORT: Final = """\
The page needs nothing else: no script, no network. FILE of --from is a history
(LOCKFAST_HISTORY), or what `lockfast watch --json` has printed.

examples:
  lockfast report --html locks.html --for 1m
  lockfast watch --json >events.jsonl
  lockfast report --from events.jsonl --html locks.html
"""
TOP: Final = """\
keys:
  ↑ ↓       choose a lock            /   filter by name
  w a c n   sort by waiters, age,    p   pause
            contention, name         r   revoke, after asking for a reason
  tab       holders, queue, events,  q   quit
            graph, sessions
"""
REVOKE: Final = """\
The next in the queue gets the lock at once. The holder receives your name
and the reason with its next renewal, and may keep working until then: only a
guard stops its writes.

exit codes: 0 if something was revoked, 1 if there was nothing to revoke

examples:
  lockfast revoke deploy --reason "host is gone"
  lockfast revoke --kind semaphore api --reason "leaked permits" --yes
  lockfast revoke --session 0f3a9c1b --reason "runaway job"
"""
DOCTOR: Final = """\
exit codes: 0 if the store is safe for locks, 2 if it is not, 69 if it is
unreachable

examples:
  lockfast doctor redis://cache.internal            check server and namespace
  lockfast doctor --repair redis://cache.internal   and repair what is damaged
  lockfast doctor --dump sqlite:///var/lib/app/locks.db | less
"""
RESET: Final = """\
Every lock of the namespace is free afterwards, although its holder may still
be working: only a guard stops its writes. Tokens keep rising. Use it if
`lockfast doctor --repair` does not help.

exit codes: 0 if the namespace was reset, 1 if you declined, 69 if the store
is unreachable

examples:
  lockfast reset staging --url redis://cache.internal
  lockfast reset default --yes      the namespace of clients that name none
"""
SIMULATE: Final = """\
SCENARIO is one of
  turns  crash  pause  zombie  split-brain  failover  lost-reply  clock-jump
  thundering-herd  deadlock  priority  ttl-too-short  majority
or a TOML file: your own, or one that a search wrote.
Needs: pip install 'lockfast[sim]'

exit codes: 0 if every promise was kept, 1 if one was broken, 2 for wrong
usage

examples:
  lockfast simulate zombie --seed 7              a guard refuses a write
  lockfast simulate zombie --seed 7 --no-guard   the same write is let through
"""
CHECK: Final = """\
Any program that uses Lockfast records a history if LOCKFAST_HISTORY names a
file; processes on one machine may share it.

exit codes: 0 if every promise was kept, 1 if one was broken, 2 if FILE is
not a history

examples:
  LOCKFAST_HISTORY=h.jsonl python worker.py
  lockfast check h.jsonl --html h.html
"""
ADVISE_TTL: Final = """\
FILE is a history that a program recorded under LOCKFAST_HISTORY; record your
own program, because its pauses count. Without FILE the command holds a lock
of its own and shows what the machine and the store contribute.

exit codes: 0 with a recommendation, 1 without one, 2 if FILE is not a history

examples:
  LOCKFAST_HISTORY=h.jsonl python worker.py     record for a day, then
  lockfast advise-ttl h.jsonl
  lockfast advise-ttl h.jsonl --candidate 8s --candidate 12s
  lockfast advise-ttl --url redis://cache.internal --for 10m
  lockfast advise-ttl h.jsonl --json | jq .ttl_s
"""
SCHEMA: Final = """\
A client creates the schema on first use if its role may. Where it may not,
review this SQL and run it as the owner of the database; then grant the role
the rights listed in docs/stores/postgresql.md.

examples:
  lockfast schema postgresql | psql mydb
  lockfast schema postgresql --guards | psql orders
"""
COMPLETION: Final = """\
examples:
  source <(lockfast completion bash)      in ~/.bashrc
  source <(lockfast completion zsh)       in ~/.zshrc, after compinit
  lockfast completion fish > ~/.config/fish/completions/lockfast.fish
"""

SERVE = """\
Clients connect with lockfast.connect("http://127.0.0.1:7601"), or with curl.
The first start creates a token and prints it. Any other address than loopback
or a Unix socket needs TLS.

  lockfast serve
  lockfast serve --store redis://localhost --listen /run/lockfast.sock
  lockfast serve --store-file url --listen 0.0.0.0:7601 --config server.toml
  lockfast serve --node /var/lib/lockfast --config server.toml

The last one is also a node of quorum+https://a,b,c, where more than half of
independent servers grant a lock.

SIGTERM shuts down gracefully; sessions stay alive in the store. SIGHUP reads
rights, quotas and certificates again.
"""

TOKEN = """\
Tokens are 256 random bits and are shown once; the server keeps only a hash. A
principal has at most two, so that one can replace the other. A running server
notices changes within a second.

  lockfast token create alice --expires 90d
  lockfast token list
  lockfast token revoke 3f2a91bc
"""

PLAYGROUND = """\
A page with workers that share a lock. Pause, crash or cut off a worker, or
give it a wrong clock, and see what that does to a balance with and without
fencing tokens. "Show me the classic failure" plays the one that every talk
about fencing begins with. Everything is in the memory of this process.
Needs: pip install 'lockfast[server]'

  lockfast playground --open
  lockfast playground --listen 127.0.0.1:8000 --workers 3
"""
