"""`lockfast serve`: the lock server."""

from __future__ import annotations

import argparse
import importlib.util
import os
from typing import TYPE_CHECKING
from urllib.parse import quote

from lockfast.api import settings
from lockfast.cli import exit_codes
from lockfast.stores.registry import label_of

if TYPE_CHECKING:
    from lockfast.server.node_service import NodeOptions

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


def _node_options(arguments: argparse.Namespace) -> NodeOptions | None:
    from lockfast.server.node_service import NodeOptions
    from lockfast.stores.quorum.opening import SILENCE_S, SKEW_S

    if arguments.node is None:
        if arguments.skew is not None or arguments.silence is not None:
            raise exit_codes.CommandError(exit_codes.USAGE, "--skew and --silence need --node")
        return None
    skew_s = SKEW_S if arguments.skew is None else arguments.skew
    silence_s = SILENCE_S if arguments.silence is None else arguments.silence
    for name, span_s in (("--skew", skew_s), ("--silence", silence_s)):
        if not 0.001 <= span_s <= 86_400:
            raise exit_codes.CommandError(exit_codes.USAGE, f"{name} is from 0.001 to 86400 s")
    return NodeOptions(
        os.path.abspath(arguments.node), round(1_000_000 * skew_s), round(1000 * silence_s)
    )


def serve(arguments: argparse.Namespace) -> int:
    check_packages("the server")
    from lockfast.server.listening import parse_place
    from lockfast.server.running import Options
    from lockfast.server.running import serve as run

    try:
        places = tuple(parse_place(text) for text in arguments.listen or ["127.0.0.1:7601"])
    except ValueError as error:
        raise exit_codes.CommandError(exit_codes.USAGE, str(error)) from None
    node = _node_options(arguments)
    if arguments.store_file is not None:
        store_url = settings.read_url_file(arguments.store_file, "--store-file")
    elif node is not None and arguments.store is None:
        store_url = f"sqlite://{quote(os.path.join(node.directory, 'locks.db'))}"
    else:
        store_url = settings.default_url() if arguments.store is None else arguments.store
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
            node=node,
        )
    )
    return 0
