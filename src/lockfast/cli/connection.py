"""The store, the client and the owner label for a command line."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
from collections.abc import Iterator

from lockfast.api import settings
from lockfast.api.blocking import Client, connect
from lockfast.cli import exit_codes
from lockfast.cli.formatting import LogFormatter
from lockfast.errors import LimitError


@contextlib.contextmanager
def open_client(
    arguments: argparse.Namespace, default_owner: str, *, death_watch: bool = True
) -> Iterator[Client]:
    """Yield a client for the store that the arguments and the environment name."""
    with (
        _connect(arguments, default_owner, death_watch) as client,
        _outages_logged_once_connected(client),
    ):
        yield client


def _connect(arguments: argparse.Namespace, default_owner: str, death_watch: bool) -> Client:
    owner = arguments.owner or os.environ.get("LOCKFAST_OWNER") or default_owner
    try:
        return connect(
            url_of(arguments),
            ttl=getattr(arguments, "ttl", None),
            owner=owner,
            death_watch=death_watch,
        )
    except (ValueError, LimitError) as error:  # a variable of the environment is wrong
        raise exit_codes.CommandError(exit_codes.USAGE, str(error)) from error


@contextlib.contextmanager
def _outages_logged_once_connected(client: Client) -> Iterator[None]:
    """Log no outage as text before the store has answered: the error that follows reports it.

    Lines in JSON are for a program, which expects a record of every outage.
    """

    def is_news(record: logging.LogRecord) -> bool:
        if getattr(record, "event", "") != "StoreUnreachable":
            return True
        return any(session.snapshot.opened for session in client._core.sessions())

    root = logging.getLogger()
    handlers = [each for each in root.handlers if isinstance(each.formatter, LogFormatter)]
    for handler in handlers:
        handler.addFilter(is_news)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(is_news)


def url_of(arguments: argparse.Namespace) -> str:
    """Return the store's URL from the arguments or the environment; it may contain a password."""
    if arguments.url is not None:
        return str(arguments.url)
    if arguments.url_file is not None:
        return settings.read_url_file(arguments.url_file, "--url-file")
    return settings.default_url()


def program_label(program: str) -> str:
    """Return an owner label of host, pid and program."""
    return _as_owner(f"{socket.gethostname()}:{os.getpid()}:{os.path.basename(program)}")


def person_label() -> str:
    """Return an owner label of user and host, for the author of a revocation."""
    import getpass

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        user = str(os.getuid())
    return _as_owner(f"{user}@{socket.gethostname()}")


def _as_owner(label: str) -> str:
    clean = "".join(c if c.isprintable() else "?" for c in label)
    return clean.encode()[: settings.OWNER_BYTES_MAX].decode(errors="ignore")
