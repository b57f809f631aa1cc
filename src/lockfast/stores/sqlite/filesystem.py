"""Checks of where a lock database is: in a private directory on a local disk, with one path."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Final

from lockfast.errors import (
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from lockfast.stores.private_files import check_directory, check_file, make_directories

NETWORK_TYPES: Final = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs", "gfs2", "glusterfs"),
        *("lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "virtiofs"),
        *("fuse.cephfs", "fuse.davfs2", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs"),
        "fuse.sshfs",
    }
)
"""File locks and shared memory, which WAL needs, do not work across machines."""

MOUNTS = Path("/proc/self/mountinfo")

SUFFIXES: Final = ("", "-wal", "-shm", "-gate")
"""The files of a database."""


def prepare(path: Path, label: str, *, group: bool = False) -> None:
    """Create the directory if necessary, and refuse places where locks would be unsafe."""
    try:
        if path.is_dir():
            raise StoreMisconfiguredError(label, "is a directory", "name a file in it")
        directory = os.path.dirname(path)
        if not group:
            make_directories(directory)
        elif not os.path.isdir(directory):
            raise StoreMisconfiguredError(
                label,
                f"{directory} does not exist",
                f"create it for the group that shares it: install -d -m 2770 -g GROUP {directory}",
            )
        check_directory(directory, label, group=group)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise translate(error, path, label) from error
    kind = filesystem_type(path.parent)
    if kind in NETWORK_TYPES:
        raise StoreMisconfiguredError(
            label,
            f"is on a network file system ({kind}), where file locks do not work",
            "use a file on a local disk, or a store made for several machines",
        )


def check_files(path: Path, label: str, *, group: bool = False) -> None:
    """Refuse files that others can use, or that have more than one path.

    SQLite derives the path of the write-ahead log from the path of the database. Two paths to one
    database therefore mean two logs, and two holders of each lock.
    """
    mounted = mount_points()
    for suffix in SUFFIXES:
        name = f"{path}{suffix}"
        try:
            found = os.lstat(name)
        except FileNotFoundError:
            continue
        check_file(name, found, label, group=group)
        if found.st_nlink > 1:
            raise StoreMisconfiguredError(
                label,
                f"{name} has {found.st_nlink} hard links, and each would lead to other locks",
                "remove the other links, or copy the file instead",
            )
        if name in mounted:
            raise StoreMisconfiguredError(
                label,
                f"{name} is mounted as a single file, without the files that belong to it",
                "mount the directory that contains it",
            )


def mount_points() -> dict[str, str]:
    """Return the file system type of each mount point; empty if the system has no list."""
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        fields = line.split(" ")
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        found[point] = fields[
            fields.index("-") + 1
        ]  # A later mount on the same point hides the earlier one.
    return found


def filesystem_type(directory: Path) -> str:
    """Return the file system type of a directory; "" if unknown."""
    where = os.path.realpath(directory)
    best, kind = "", ""
    for point, kind_there in mount_points().items():
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, kind_there
    return kind


def translate_use(error: OSError, path: Path, label: str) -> StoreError:
    """As `translate`, for a file that was already open."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS):
        return translate(error, path, label)
    return OutcomeUnknownError(label, f"the disk failed ({error})", "check the disk")


def translate(error: OSError, path: Path, label: str) -> StoreError:
    """Return the error for a caller, with what to do about it."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreMisconfiguredError(
            label,
            f"no right to write to {error.filename or path.parent}",
            "give this user that right, or name another path",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreUnavailableError(label, "the disk is full", "free some space; nothing was lost")
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG):
        return StoreMisconfiguredError(label, f"the path cannot be used ({error.strerror})")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StoreUnavailableError(
            label, "this process has no file descriptors left", "raise `ulimit -n`"
        )
    return StoreUnavailableError(label, f"cannot be opened ({error})")
