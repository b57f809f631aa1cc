"""The client behind a command line, and how others see it."""

from __future__ import annotations

import argparse
import os
import socket

from lockfast.api import settings
from lockfast.api.blocking import Client, connect
from lockfast.cli import codes
from lockfast.errors import LimitError


def open_client(
    arguments: argparse.Namespace, default_owner: str, *, death_watch: bool = True
) -> Client:
    """Connect as the arguments and the environment say."""
    owner = arguments.owner or os.environ.get("LOCKFAST_OWNER") or default_owner
    try:
        return connect(
            arguments.url or None,
            ttl=getattr(arguments, "ttl", None),
            owner=owner,
            death_watch=death_watch,
        )
    except (ValueError, LimitError) as error:  # of the environment's values
        raise codes.Complaint(codes.USAGE, str(error)) from error


def url_of(arguments: argparse.Namespace) -> str:
    """The store's URL as the arguments and the environment give it; it may hold a password."""
    return str(arguments.url or settings.default_url())


def program_label(program: str) -> str:
    """Host, pid and program."""
    return _as_owner(f"{socket.gethostname()}:{os.getpid()}:{os.path.basename(program)}")


def person_label() -> str:
    """Who is at the keyboard, for those whose lock they take."""
    import getpass

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an id without a name, as in many containers
        user = str(os.getuid())
    return _as_owner(f"{user}@{socket.gethostname()}")


def _as_owner(label: str) -> str:
    clean = "".join(c if c.isprintable() else "?" for c in label)
    return clean.encode()[: settings.OWNER_BYTES_MAX].decode(errors="ignore")
