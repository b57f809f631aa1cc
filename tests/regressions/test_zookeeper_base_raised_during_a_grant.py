"""A token is derived from the base that its write has checked, whatever was read since.

Another thread of the same client may raise the base of tokens while the answer to a grant is under
way. The granting step then derived the token from the new base, and all others from the old one,
which is stored with the grant.
"""

from __future__ import annotations

from lockfast.core import commands as c
from lockfast.stores.zookeeper.transport import Multi, Request
from tests.zookeeper.model import ModelServer
from tests.zookeeper.test_long_lines import Client

RAISED_BY = 1_000_000


def test_a_base_raised_during_a_grant_does_not_change_its_token() -> None:
    server = ModelServer()
    client, other = Client(server, "client"), Client(server, "other")
    assert isinstance(client.enter(1), c.Granted)
    client.leave(1)
    context = client.store.context

    def raise_base(request: Request) -> None:
        if isinstance(request, Multi):
            server.before = None
            assert context.base is not None
            base, version = context.base
            context.base = (base._replace(value=base.value + RAISED_BY), version + 1)

    server.before = raise_base
    granted = client.enter(2)
    assert isinstance(granted, c.Granted)
    view = other.send(c.Inspect("lock", "a", 16))
    assert isinstance(view, c.ResourceView)
    assert [claim.token for claim in view.holders] == [granted.token]
