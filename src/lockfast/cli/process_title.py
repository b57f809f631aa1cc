"""Hide a password that was given on the command line from `ps`."""

from __future__ import annotations

import os
from pathlib import Path

from lockfast.stores.registry import label_of


def hide_argument(url: str) -> None:
    """Overwrite a URL among this process's arguments with its label.

    On Linux a process may write to its own memory through /proc, and `ps` reads the arguments
    from there. Elsewhere, and where the kernel forbids it, the URL stays visible; it is visible
    everywhere until this runs. Only a file or the environment keeps it secret throughout.
    """
    label = label_of(url)
    if label == url:
        return
    try:
        _overwrite(os.fsencode(url), os.fsencode(label))
    except (OSError, ValueError, IndexError):
        return  # nothing was promised


def _overwrite(secret: bytes, label: bytes) -> None:
    arguments = Path("/proc/self/cmdline").read_bytes()
    # The fields after the program's name in parentheses, which may contain spaces. arg_start is
    # field 48 of proc(5), and the first field here is number 3.
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    arg_start = int(fields[48 - 3])
    at = arguments.index(secret)
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(arg_start + at)
        memory.write(label[: len(secret)].ljust(len(secret), b"*"))
