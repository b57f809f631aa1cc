"""HTTP/1.1 for stores that are reached by JSON over HTTP: bounded, with both APIs.

`messages` turns requests into bytes and bytes into replies and knows no sockets; `blocking` and
`asynchronous` are pools of connections, and `failover` chooses the member to ask. Every reply is
bounded in size (head, body, line of a stream) and in total time, however slowly its bytes trickle
in.
"""
