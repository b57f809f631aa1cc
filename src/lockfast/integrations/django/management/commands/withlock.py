"""manage.py withlock NAME COMMAND …: run a management command while holding a lock."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER, ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError  # type: ignore[import-untyped]

from lockfast.integrations.django import configuration


class Command(BaseCommand):  # type: ignore[misc]
    help = "Run another management command while holding a lock; see `lockfast run`."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--timeout", help="how long to wait for the lock, for example 5m")
        parser.add_argument("name", help="the lock")
        parser.add_argument("command", nargs=REMAINDER, help="the command and its arguments")

    def handle(self, *args: Any, **options: Any) -> None:
        command = options["command"]
        if not command:
            raise CommandError("name the management command to run, for example: migrate")
        environment = dict(os.environ)
        settings = configuration()
        # Pass the URL in the environment: it may contain a password, and `ps` shows arguments.
        if settings.get("url") is not None:
            environment["LOCKFAST_URL"] = settings["url"]
        if settings.get("ttl") is not None:
            environment["LOCKFAST_TTL"] = str(settings["ttl"])
        argv = [sys.executable, "-m", "lockfast", "run"]
        if options["timeout"] is not None:
            argv += ["--timeout", options["timeout"]]
        argv += [options["name"], "--", sys.executable, sys.argv[0], *command]
        # `lockfast run` replaces this process: it stops the command if the lease is lost, and its
        # exit codes and signals become ours.
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, argv, environment)
