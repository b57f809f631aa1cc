"""Claims that need no row of their own: each is alone at a resource, whose row has it.

So that they are found when their session ends, a word is left where it may have some. It
stays when a claim leaves: who takes the same lock again finds it there, and writes one row.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import Final, NamedTuple

WORDS_MAX: Final = 128
"""A session has no more: all of these places are looked at when it ends."""
UNUSED_S: Final = 120.0
"""A word that was not used for so long may go; no request takes as long."""
DELETED_MAX: Final = 64


class Held(NamedTuple):
    """A claim of ours that is alone."""

    token: int
    word: str
    mod: int
    """The revision that wrote the row it is in."""


class Alone:
    """Of one session of ours. Any thread may use it."""

    def __init__(self) -> None:
        self.held: dict[int, Held] = {}
        self._mutex = threading.Lock()
        self._words: dict[str, float] = {}
        """When each was used last."""

    def has_word(self, word: str) -> bool:
        """Whether it has been left; it stays for a while then."""
        with self._mutex:
            if word not in self._words:
                return False
            self._words[word] = monotonic()
            return True

    def is_full(self) -> bool:
        return len(self._words) >= WORDS_MAX

    def hold(self, n: int, held: Held) -> None:
        """A claim is alone, and the word of it has been left."""
        with self._mutex:
            self._words[held.word] = monotonic()
            self.held[n] = held

    def drop(self, n: int) -> None:
        self.held.pop(n, None)

    def unused(self) -> list[str]:
        """Words to be deleted: nobody relies on them any more."""
        with self._mutex:
            if len(self._words) <= WORDS_MAX // 2:
                return []
            used = {held.word for held in self.held.values()}
            before_s = monotonic() - UNUSED_S
            old = [
                word
                for word, used_s in self._words.items()
                if used_s < before_s and word not in used
            ]
            for word in old[:DELETED_MAX]:
                del self._words[word]
            return old[:DELETED_MAX]
