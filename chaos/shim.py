"""A shifted wall clock and a full disk for one process, by a small preloaded library (shim.c).

It needs a C compiler but no root. It cannot affect programs that do not call the C library, such as
etcd, which is written in Go.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_suffix(".c")
_ROW: Final = 8


class Shim:
    """One page of settings, which the processes started with it follow immediately."""

    def __init__(self, directory: Path, disk: Path) -> None:
        """Build the library; the user who runs the process must be able to read `directory`."""
        self._library = directory / "shim.so"
        self._page = directory / "page"
        self._disk = disk
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(self._library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        self._library.chmod(0o755)
        self._page.write_bytes(bytes(2 * _ROW))
        self._page.chmod(0o644)

    def environment(self) -> dict[str, str]:
        """Return the variables to start a process with."""
        return {
            "LD_PRELOAD": str(self._library),
            "LOCKFAST_CHAOS_PAGE": str(self._page),
            "LOCKFAST_CHAOS_DISK": str(self._disk),
        }

    def move_clock(self, seconds: float) -> None:
        """Set how far the wall clock is ahead."""
        self._set(0, round(seconds * 1_000_000))

    def fill_disk(self, full: bool) -> None:
        self._set(1, int(full))

    def _set(self, row: int, value: int) -> None:
        with self._page.open("r+b") as page:
            page.seek(row * _ROW)
            page.write(value.to_bytes(_ROW, "little", signed=True))


def missing() -> str:
    """Return why there can be no shim; "" if there can."""
    return "" if shutil.which("cc") else "needs a C compiler (cc), and there is none"
