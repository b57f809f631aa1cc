"""`lockfast serve`: the lock server."""

from __future__ import annotations

import argparse
import importlib.util

from lockfast.api import settings
from lockfast.cli import exit_codes
from lockfast.stores.registry import label_of

NEEDED = ("starlette", "uvicorn", "jwt")


def check_packages(what: str) -> None:
    """Raise CommandError unless the server's dependencies are installed."""
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        raise exit_codes.CommandError(
            exit_codes.USAGE, f"{what} needs more packages: pip install 'lockfast[server]'"
        )


def _has_password(url: str) -> bool:
    # A label also hides what is merely malformed, such as a port that is no number.
    is_hidden = label_of(url) != url
    return is_hidden and any(mark in url.lower() for mark in ("@", "%40", "?"))


def serve(arguments: argparse.Namespace) -> int:
    check_packages("the server")
    from lockfast.server.listening import parse_place
    from lockfast.server.running import Options
    from lockfast.server.running import serve as run

    try:
        places = tuple(parse_place(text) for text in arguments.listen or ["127.0.0.1:7601"])
    except ValueError as error:
        raise exit_codes.CommandError(exit_codes.USAGE, str(error)) from None
    if arguments.store_file:
        store_url = settings.read_url_file(arguments.store_file, "--store-file")
    else:
        store_url = arguments.store or settings.default_url()
        if _has_password(arguments.store or ""):
            raise exit_codes.CommandError(
                exit_codes.USAGE,
                "--store contains a password, which every user of this machine can read in the "
                "process list; write the URL to a file and use --store-file, or set LOCKFAST_URL",
            )
    run(
        Options(
            store_url,
            arguments.state_dir,
            places,
            arguments.config or "",
            arguments.insecure_dev,
            arguments.drain,
        )
    )
    return 0
