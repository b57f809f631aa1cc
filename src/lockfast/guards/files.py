"""A guard for a file: it is replaced as a whole, and never by the holder of an older token.

Beside the file lies its fence, `NAME.fence`: the newest token admitted, as decimal digits. A write

1. locks the fence (`flock`), so that writers follow each other;
2. reads the token there and refuses an older one;
3. writes the new content to a temporary file and syncs it;
4. raises the token in the fence and syncs it;
5. renames the temporary file over the file and syncs the directory.

A writer that dies before step 4 has changed nothing. One that dies between 4 and 5 leaves the old
content and a raised fence: older tokens are refused although nothing was written, and the same or a
newer token writes again. So no older content ever follows a newer one. The temporary file has a
fixed name, which only the holder of the fence's lock uses; the next writer overwrites a dead
writer's. The fence is shorter than a disk sector, so a power cut leaves its old or its new value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from lockfast.errors import UnsupportedError
from lockfast.guards.admission import (
    Admission,
    FenceDamagedError,
    admitted,
    check_token,
    checked_result,
    judge,
    refuse_shared,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

DIGITS = 16
"""Digits of a token: 2⁵³ has as many."""


class FileGuard:
    """A file on a local disk that holders of stale tokens cannot overwrite.

    Readers open the file as usual and see the old or the new content, never a mixture. Every writer
    must use the guard. A symbolic link is followed when the guard is created: its target is
    replaced, and the link stays. Not for network file systems, whose locks may not work.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if fcntl is None:
            raise UnsupportedError("FileGuard", "this system has no flock()", "use SqliteGuard")
        # Follow a symbolic link: under both of its names, the file must have the same fence.
        self.path = Path(os.path.realpath(path) if os.path.islink(path) else path)
        self.fence = self.path.with_name(f"{self.path.name}.fence")

    def write_bytes(self, data: bytes, token: int, *, once: bool = False) -> None:
        """Replace the content of the file, or raise StaleTokenError.

        A token is admitted unless a newer one was admitted before. With `once`, it is admitted a
        single time.
        """
        with self.replacing(token, once=once) as file:
            file.write(data)

    def write_text(self, text: str, token: int, *, once: bool = False) -> None:
        """Replace the content of the file by UTF-8 text, or raise StaleTokenError."""
        self.write_bytes(text.encode("utf-8"), token, once=once)

    @contextmanager
    def replacing(self, token: int, *, once: bool = False) -> Iterator[IO[bytes]]:
        """Yield a file for the new content, which replaces the old when the block ends.

        Raises StaleTokenError before the block. If the block raises, nothing changes.
        """
        check_token(token)
        fence_fd = os.open(self.fence, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fence_fd, fcntl.LOCK_EX)
            admission = Admission(str(self.path), token, once, (), (), "file")
            judge(admission, self._floor(fence_fd))
            admitted(admission)
            with self._new_content() as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                _write_floor(fence_fd, token)
                os.replace(file.name, self.path)
            _sync_directory(self.path.absolute().parent)
        finally:
            os.close(fence_fd)

    def execute(
        self,
        resource: str,
        token: int,
        operation: Callable[[IO[bytes]], T],
        *,
        shared: bool = False,
        once: bool = False,
    ) -> T:
        """Replace the file by what `operation` writes into the file it is given.

        The common form of all guards, for `lease.execute_with_fence`. `resource` is not used: each
        file has its own fence.
        """
        refuse_shared(shared, f"replacing {self.path}")
        with self.replacing(token, once=once) as file:
            return checked_result(operation(file))

    def floor(self) -> int:
        """Return the lowest token that would be admitted now; 0 if any token would."""
        try:
            fence_fd = os.open(self.fence, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0
        try:
            return self._floor(fence_fd)
        finally:
            os.close(fence_fd)

    def _floor(self, fence_fd: int) -> int:
        found = os.pread(fence_fd, DIGITS + 2, 0)
        if not found:
            return 0  # just created, by us or by a writer that died before its first write
        digits = found.removesuffix(b"\n")
        if len(digits) != DIGITS or not digits.isdigit():
            raise FenceDamagedError(
                str(self.fence),
                found,
                f"a token of {DIGITS} digits",
                "if no holder is at work, write the newest token you know into it, or delete it",
            )
        return int(digits)

    @contextmanager
    def _new_content(self) -> Iterator[IO[bytes]]:
        path = self.path.with_name(f".{self.path.name}.new")
        try:
            with path.open("wb") as file:
                if self.path.exists():
                    path.chmod(self.path.stat().st_mode & 0o7777)
                yield file
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _write_floor(fence_fd: int, token: int) -> None:
    os.pwrite(fence_fd, b"%0*d\n" % (DIGITS, token), 0)
    os.fsync(fence_fd)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
