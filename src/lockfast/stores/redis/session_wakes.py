"""The wakes of one session: which messages are authentic, and how each is used.

Any client that may publish on the server could send anything to a session's channel. So a wake
carries a code that only readers of the session's row can compute: SHA-1 over the session's secret,
the message, and the secret again. The secret is stored as the session's inbox; the scripts compute
the code when they publish. Messages without the right code are ignored; those with it come from a
step of the store, so a grant is trusted without another request.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable
from typing import Any, Final

from lockfast.core.commands import (
    WAKE_ENDED,
    WAKE_EVENTS,
    WAKE_GRANTED,
    WAKE_LOOK,
    WAKE_WANTED,
    Wake,
)
from lockfast.ports import Deliver
from lockfast.stores.redis.codec import TOKEN_MAX

_HINTS: Final = frozenset({WAKE_LOOK, WAKE_ENDED, WAKE_EVENTS})


class SessionWakes:
    """The secret of one session, and the messages to it."""

    def __init__(
        self, session: str, deliver: Deliver, *, confirmed: bool = False, inbox: str = ""
    ) -> None:
        """Create the wakes of `session`; "" for a server that receives those of all its sessions.

        `confirmed`: a grant counts only when replicas have it, so no grant is trusted.
        """
        self.inbox = inbox or os.urandom(16).hex()
        self._session = session
        self._deliver = deliver
        self._confirmed = confirmed

    def hear_all(self, messages: Iterable[Any]) -> list[Wake]:
        """Deliver the trusted wakes among messages that arrived together; return the hints.

        A script that grants a retained lock for which others wait publishes both, the grant first.
        The second is delivered first: a holder that starts without knowing of the others would
        continue until this thread gets the GIL again, for hundreds of uses, while others get one
        each.
        """
        heard = [wake for wake in map(self._authentic, messages) if wake is not None]
        for wake in heard:
            if wake.what == WAKE_WANTED:
                self._deliver(wake)
        for wake in heard:
            if wake.what == WAKE_GRANTED and not self._confirmed:
                self._deliver(wake)
        hints = [wake for wake in heard if wake.what in _HINTS]
        if self._confirmed:
            # A grant counts when replicas have it: make the keeper look, which asks them.
            hints += [w._replace(what=WAKE_LOOK) for w in heard if w.what == WAKE_GRANTED]
        return hints

    def _authentic(self, message: Any) -> Wake | None:
        """Return the wake in a message from one of our scripts; None for any other message."""
        if type(message) is not list or message[:1] not in (["message"], ["pmessage"]):
            return None
        text = message[-1]
        if type(text) is not str:
            return None
        said, _, code = text.rpartition(" ")
        try:
            session, n, what, token = said.split(" ")
            wake = Wake(self.inbox, session, int(n), what, int(token))
        except ValueError:
            return None
        if not 0 <= wake.token <= TOKEN_MAX:
            return None
        if not hmac.compare_digest(code.encode(), self._code(said).encode()):
            # Perhaps for a session that another server opened: only a reason to look.
            return None if self._session else wake._replace(what=WAKE_LOOK, token=0)
        return wake if self._session in (session, "") else None

    def _code(self, said: str) -> str:
        """Return the code of a message, as WAKE_CODE in `scripts.py` computes it."""
        text = f"{self.inbox}{said}{self.inbox}".encode(errors="replace")
        return hashlib.sha1(text, usedforsecurity=False).hexdigest()
