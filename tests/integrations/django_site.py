"""A Django project in one file: settings, and `manage.py` when run as a program."""

from __future__ import annotations

import os
import sys

SECRET_KEY = "test"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "lockfast.integrations.django",
]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["TEST_DATABASE"]}
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LOCKFAST = {"URL": os.environ["TEST_STORE"], "TTL": 3}

if __name__ == "__main__":
    from django.core.management import execute_from_command_line  # type: ignore[import-untyped]

    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.integrations.django_site"
    execute_from_command_line(sys.argv)
