"""The application `lockfast.integrations.django`, which registers the system checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig  # type: ignore[import-untyped]
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # type: ignore[import-untyped]

import lockfast
from lockfast.errors import LockfastError
from lockfast.integrations.django import configuration


class LockfastConfig(AppConfig):  # type: ignore[misc]
    name = "lockfast.integrations.django"
    label = "lockfast"
    verbose_name = "Lockfast"

    def ready(self) -> None:
        register(check_setting)
        register(check_store, Tags.security, deploy=True)


def check_setting(**_: Any) -> Sequence[CheckMessage]:
    """Check for `manage.py check` that the setting is valid and the driver is installed."""
    try:
        lockfast.connect(**configuration()).close()
    except (LockfastError, TypeError, ValueError) as error:
        return [Error(str(error), hint="correct the setting LOCKFAST", id="lockfast.E001")]
    return []


def check_store(**_: Any) -> Sequence[CheckMessage]:
    """Check for `manage.py check --deploy` that the store answers."""
    try:
        with lockfast.connect(**configuration()) as client:
            client.inspect("lockfast-check")
    except (TypeError, ValueError):
        return []  # reported by check_setting
    except LockfastError as error:
        return [Warning(str(error), hint="run `lockfast doctor`", id="lockfast.W001")]
    return []
