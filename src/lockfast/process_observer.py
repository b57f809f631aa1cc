"""The observer of the whole process, for emitters that belong to no client: the guards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

observe: Callable[[Any], None] | None = None
"""Receives each event; None while nobody observes. Set by `lockfast.observe`."""
