"""The command line: `lockfast run NAME -- CMD`, and looking at locks from outside."""

from lockfast.cli.app import main

__all__ = ["main"]
