"""The lock server: the commands of `core/commands.py` over HTTP, on any store.

The server is thin. A request is one command, by the table in `stores/lockserver/routes.py`; the
server authenticates it, checks rights and quotas, completes it with what no client may choose
(inbox, process, the principal in the owner label, the author of a revocation), sends it to its
store and returns the reply. Sessions, claims and tokens are in the store and nowhere else, so a
server may be killed at any time, and several servers may share one store.

    request ─ border ─ authentication ─ service ─────────── store
              Host,    tokens, mTLS,    rights, quotas,       │
              Origin,  JWT              binding of sessions   │ wakes
              limits                                          │
    stream ◄──────────────────────────  wakes ◄───────────────┘

Programs and people use the same API: a successful reply is the command's reply in the neutral
encoding of `core/codec.py`, and a refusal is a problem document (RFC 9457) that contains the same
reply in its member `reply`. Requests may be repeated: commands are idempotent by claim number.

Waiting needs no thread per request. A store with `listens_for_all` (memory, SQLite, Redis,
PostgreSQL) has one listener for all sessions; on other stores each session has its own. A wake
goes to the stream of its session (`/v1/sessions/{session}/wakes`) and to the requests that wait
with `Prefer: wait`. Wakes are only hints here, too: a restarted server has lost some, so each
stream begins with `missed`, and clients check their claims.

A session belongs to the principal that opened it: the server appends the
principal to the owner label (`web-1:4711 [alice]`), where every server over this store finds it.
To any other principal the server replies that the session has ended, so session ids are handles,
not capabilities. All reads are filtered by rights; what a principal may not read does not exist
for it.

| module | what it does |
|---|---|
| `app`, `endpoints`, `streams` | the ASGI application, its requests and its streams |
| `service` | one command of one principal: validate, complete, execute, filter |
| `node_service`, `node_endpoints` | the server as a node of a majority (`stores/quorum/`) |
| `wakes`, `event_log` | wakes and events from the store to streams |
| `checks` | checks of values that commands and requests to a node share |
| `border` | what is refused before a request is read: Host, Origin, sizes |
| `identity`, `tokens`, `jwt`, `rights`, `quotas`, `audit` | security |
| `problems`, `replies`, `openapi` | replies, problem documents and their description |
| `config`, `listening`, `running` | sockets, TLS, systemd, start and shutdown |

The page at `/` is the dashboard, in its own package (`server/dashboard/`); `logins` is its login.
"""
