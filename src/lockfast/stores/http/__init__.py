"""HTTP/1.1 for stores that are accessed by JSON over HTTP: bounded, for both APIs.

`messages` encodes requests and decodes replies and knows no sockets; `blocking` and `asynchronous`
are connection pools, and `failover` chooses the member to ask. Every reply is bounded in size
(head, body, line of a stream) and in total time, however slowly its bytes arrive.
"""
