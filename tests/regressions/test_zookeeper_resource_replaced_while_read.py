"""A resource that is deleted and created again while it is read must not pass for the first one.

A document and the names of its claims are two reads. Between them the holder can leave, which
deletes the resource, and another client can enter, which creates it again with the same data
version. The step then combined the old document, whose holder was gone, with a node of the new
resource as proof that nothing had changed: its multi overwrote the new holder.
"""

from __future__ import annotations

from lockfast.core import commands as c
from lockfast.stores.zookeeper.transport import Children, Request
from tests.zookeeper.model import ModelServer
from tests.zookeeper.test_long_lines import Client


def test_a_holder_that_enters_between_two_reads_is_not_overwritten() -> None:
    server = ModelServer()
    first, second, third = (Client(server, name) for name in ("first", "second", "third"))
    assert isinstance(third.enter(1), c.Granted)
    third.leave(1)
    assert isinstance(first.enter(), c.Granted)

    def replace(request: Request) -> None:
        if isinstance(request, Children) and request.path.endswith("lock:a"):
            server.before = None
            first.leave()
            assert isinstance(second.enter(), c.Granted)

    server.before = replace
    assert isinstance(third.enter(2), c.Queued)
    assert server.before is None
    assert isinstance(second.look(), c.Granted)
