"""Where a lock file may live: a directory of ours, on a disk of this machine."""

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

NETWORK_TYPES: Final = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs", "gfs2", "glusterfs"),
        *("lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "virtiofs"),
        *("fuse.cephfs", "fuse.davfs2", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs"),
        "fuse.sshfs",
    }
)
"""POSIX locks and shared memory, on which WAL rests, do not work across machines."""

MOUNTS = Path("/proc/self/mountinfo")


def prepare(path: Path, label: str) -> None:
    """Make the directory if need be, and refuse places where locks would not hold."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_directory = path.is_dir()
    except OSError as error:
        raise translate(error, path, label) from error
    if is_directory:
        raise StoreMisconfiguredError(label, "is a directory", "name a file in it")
    kind = filesystem_type(path.parent)
    if kind in NETWORK_TYPES:
        raise StoreMisconfiguredError(
            label,
            f"lies on a network file system ({kind}), where file locks do not hold",
            "use a file on a local disk, or a store made for several machines",
        )


def filesystem_type(directory: Path) -> str:
    """The type of the file system a directory lies on; "" where that cannot be told."""
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    where = os.path.realpath(directory)
    best, kind = "", ""
    for line in lines:
        fields = line.split(" ")
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # the later of two on one point covers the other
            best, kind = point, fields[fields.index("-") + 1]
    return kind


def translate_use(error: OSError, path: Path, label: str) -> StoreError:
    """As `translate`, for a file that was open by then."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS):
        return translate(error, path, label)
    return OutcomeUnknownError(label, f"the disk failed ({error})", "look at the disk")


def translate(error: OSError, path: Path, label: str) -> StoreError:
    """What an operating-system error means to a caller, and what to do about it."""
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
        return StoreUnavailableError(label, "this process has no file descriptors left")
    return StoreUnavailableError(label, f"cannot be opened ({error})")
