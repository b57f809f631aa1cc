"""The head of a lock file: the state that the last step left, in a file of two slots.

A step is written into the slot that does not hold the newest state, so whoever is killed
while writing leaves the state before: a slot counts only if its checksum is right.

It is mapped into memory, for system calls were half of what a step costs.
"""

from __future__ import annotations

import mmap
import os
import struct
from binascii import crc32
from pathlib import Path
from typing import Final

SLOT_BYTES: Final = 4096
_HEADER: Final = struct.Struct("<QII")
"""Version, length and checksum of what follows."""
_HEADER_BYTES: Final = _HEADER.size
_pack_header: Final = _HEADER.pack
BODY_MAX: Final = SLOT_BYTES - _HEADER_BYTES
_VERSION_BYTES: Final = 8
_VERSION_BITS: Final = 0xFFFFFFFF


class Damaged(Exception):
    """There is no state in the file."""


def path_of(path: Path) -> str:
    """Where the head of a lock file is."""
    return f"{path}-head"


class Head:
    """The two slots. To write is for whoever is inside the gate."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path_of(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(self.descriptor).st_size
            while size < 2 * SLOT_BYTES:
                # Zeros and not a hole: a disk that is full later does not matter then.
                size += os.pwrite(self.descriptor, bytes(2 * SLOT_BYTES - size), size)
            # It has a descriptor of its own, and to close either of them opens the gate:
            # so both are there as long as this is.
            self._slots = mmap.mmap(self.descriptor, 2 * SLOT_BYTES)
        except BaseException:
            os.close(self.descriptor)
            raise

    def is_newest(self, version: int) -> bool:
        """Whether a state that was read or written before is still the newest."""
        # The next one goes to the other slot, where the one before is until then.
        at = (version + 1) % 2 * SLOT_BYTES
        before = self._slots[at : at + _VERSION_BYTES]
        return before == (version - 1).to_bytes(_VERSION_BYTES, "little")

    def read(self) -> tuple[int, bytes]:
        """Version and body of the newest state. Raises Damaged if there is none."""
        data = self._slots[:]
        first = _HEADER.unpack_from(data, 0)
        second = _HEADER.unpack_from(data, SLOT_BYTES)
        slots = ((first, 0), (second, SLOT_BYTES))
        for (version, length, checksum), at in slots if first > second else slots[::-1]:
            begin = at + _HEADER_BYTES
            body = data[begin : begin + length]
            if length and checksum == crc32(body, version & _VERSION_BITS):
                return version, body
        raise Damaged

    def write(self, version: int, body: bytes) -> None:
        """Make this the newest state; `version` is greater by one than that of the last."""
        size = len(body)
        at = version % 2 * SLOT_BYTES
        self._slots[at : at + _HEADER_BYTES + size] = (
            _pack_header(version, size, crc32(body, version & _VERSION_BITS)) + body
        )

    def close(self) -> None:
        self._slots.close()
        os.close(self.descriptor)
