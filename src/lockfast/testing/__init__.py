"""For tests of programs that use locks: a controllable store, and assertions.

The fixtures `lockfast_store`, `lockfast_client` and `lockfast_aio_client` of the pytest plugin are
built on this package. See docs/testing.md.
"""

from lockfast.testing.clock import Clock
from lockfast.testing.fencing import assert_fenced, assert_fenced_async
from lockfast.testing.store import ControlledStore

__all__ = ["Clock", "ControlledStore", "assert_fenced", "assert_fenced_async"]
