"""The client of a Lockfast server: http://, https:// and http+unix://.

The server executes the commands of `core/commands.py` on its own store. This package implements the
store port on top of it, so sessions, keep-alives, deadlines and tokens work as on every other
store: a server that does not answer makes leases `uncertain`, and at their local deadline `lost`.

`routes` maps each command to a request; the server uses the same table. `errors` turns problem
documents (RFC 9457) into exceptions. `transport` is the port to the network, so that a simulated
server can replace a real one; `network` has the sockets.

One step is one request. A lost reply is harmless, because commands are idempotent by claim number.
Wakes arrive on one stream of JSON lines per session, on the keeper's own connection. Wakes sent
while the stream was broken are lost: each new stream begins with `missed`, and the keeper checks
all claims. A grant on the stream is trusted: the stream comes from the same server as every other
reply, over the same authenticated connection.

A URL may name several servers over one store. A request goes to the first that can be reached; if a
server received the request and did not answer, the outcome is unknown and the caller retries, at
the next server.
"""
