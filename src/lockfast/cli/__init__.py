"""The command `lockfast`: run commands under a lock, inspect locks, repair stores."""

from lockfast.cli.app import main

__all__ = ["main"]
