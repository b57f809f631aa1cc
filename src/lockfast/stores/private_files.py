"""Open files that only their owner may access.

The lock database and histories name programs and locks, and the database also contains the secrets
that authenticate wakes. So these files and their directory must satisfy the rules that ssh applies
to private keys: owned by this user (or root), no permissions for others, and never accessed through
a symbolic link. A group may share them, but only on explicit request (`share=group`).

Parents of the directory are not checked. A user who may write there can move the directory away,
but cannot replace it by one that passes these checks.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from lockfast.errors import StoreMisconfiguredError

ROOT: Final = 0
PRIVATE: Final = 0o600
GROUP: Final = 0o660


def make_directories(directory: str) -> None:
    """Create a directory and its missing parents, each with permissions for this user only."""
    missing = []
    while directory and not os.path.isdir(directory):
        missing.append(directory)
        parent = os.path.dirname(directory)
        if parent == directory:
            break
        directory = parent
    for path in reversed(missing):
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):  # otherwise another process was faster
                raise


def open_private(path: str, flags: int, label: str, *, group: bool = False) -> int:
    """Open a file, or create it if `flags` say so; return its descriptor.

    Raises OSError, and StoreMisconfiguredError if others could read or change the file.
    """
    mode = GROUP if group else PRIVATE
    # Windows has neither: there, descriptors are not inherited, and links need a privilege.
    flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    created = False
    try:
        if flags & os.O_CREAT:
            try:
                descriptor = os.open(path, flags | os.O_EXCL, mode)
                created = True
            except FileExistsError:
                descriptor = os.open(path, flags & ~os.O_CREAT)
        else:
            descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise _refused(label, path, "is a symbolic link", "name the file itself") from None
        raise
    try:
        if created and group:
            # The group that shares the directory, and its permissions regardless of the umask.
            os.fchown(descriptor, -1, os.stat(os.path.dirname(path) or ".").st_gid)
            os.fchmod(descriptor, mode)
        check_file(path, os.fstat(descriptor), label, group=group)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_directory(directory: str, label: str, *, group: bool = False) -> None:
    """Raise StoreMisconfiguredError if another user could put files into the directory."""
    if not _has_owners():
        return
    found = os.stat(directory or ".")
    advice = "use a directory of your own, which others cannot write to"
    if not _is_trusted(found, group):
        raise _refused(label, directory, f"belongs to user {found.st_uid}, not to us", advice)
    if found.st_mode & stat.S_IWOTH:
        raise _refused(label, directory, "is writable by every user", f"{advice} (chmod o-w)")
    if found.st_mode & stat.S_IWGRP and not group:
        raise _refused(
            label,
            directory,
            "is writable by its group",
            f"run chmod g-w {directory}, or share the locks with that group (share=group)",
        )


def check_file(path: str, found: os.stat_result, label: str, *, group: bool = False) -> None:
    """Raise StoreMisconfiguredError if another user could read or change the file."""
    if not stat.S_ISREG(found.st_mode):
        raise _refused(label, path, "is not a regular file", "name another path")
    if not _has_owners():
        return
    if not _is_trusted(found, group):
        raise _refused(
            label, path, f"belongs to user {found.st_uid}, not to us", "use a file of your own"
        )
    others = found.st_mode & (0o007 if group else 0o077)
    if others:
        rights = f"{stat.S_IMODE(found.st_mode):04o}"
        raise _refused(
            label,
            path,
            f"can be used by other users (mode {rights})",
            f"if it is a file of Lockfast, run chmod go= {path}; otherwise name another path",
        )


def _has_owners() -> bool:
    """Return whether files have an owner and a mode. On Windows, the user's profile is private."""
    return hasattr(os, "geteuid")


def _is_trusted(found: os.stat_result, group: bool) -> bool:
    """Return whether the owner is this user or root, or the group is one of ours and may share."""
    if group and found.st_gid in (os.getegid(), *os.getgroups()):
        return True
    return found.st_uid in (os.geteuid(), ROOT)


def _refused(label: str, path: str, why: str, advice: str) -> StoreMisconfiguredError:
    return StoreMisconfiguredError(label, f"{path} {why}", advice)
