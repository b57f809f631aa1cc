"""Locks in Django: around transactions, in management commands, and guards inside transactions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import lockfast
from tests.cli.processes import ROOT
from tests.docs.pages import blocks_of
from tests.servers.redis import RedisServer

SITE = Path(__file__).with_name("django_site.py")


@pytest.fixture(scope="module")
def site(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the environment of the project; set up Django in this process, too."""
    database = tmp_path_factory.mktemp("django") / "db.sqlite3"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_DATABASE", str(database))
        patch.setenv("TEST_STORE", redis.url("django"))
        patch.setenv("DJANGO_SETTINGS_MODULE", "tests.integrations.django_site")
        patch.setenv("PYTHONPATH", str(ROOT))
        import django  # type: ignore[import-untyped]

        django.setup()
        yield dict(os.environ)
        from django.db import connections  # type: ignore[import-untyped]

        from lockfast.integrations.django import client

        client().close()
        connections.close_all()


def manage(site: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SITE), *arguments],
        env=site,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output_of(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=90)
    return output


def test_four_pods_migrate_at_once(site: dict[str, str]) -> None:
    """Each waits for its turn; the first applies every migration, the others find none."""
    pods = [manage(site, "withlock", "migrations", "migrate", "--noinput") for _ in range(4)]
    outputs = [output_of(pod) for pod in pods]
    assert [pod.returncode for pod in pods] == [0] * 4, outputs
    assert sorted("No migrations to apply" in output for output in outputs) == [False] + [True] * 3


def test_withlock_gives_up_with_the_exit_code_of_lockfast_run(site: dict[str, str]) -> None:
    with lockfast.connect(site["TEST_STORE"]) as client, client.lock("busy"):
        refused = manage(site, "withlock", "--timeout", "0", "busy", "check")
        assert "busy" in output_of(refused)
        assert refused.returncode == 75


def test_withlock_without_a_command_says_so(site: dict[str, str]) -> None:
    refused = manage(site, "withlock", "busy")
    assert "name the management command to run" in output_of(refused)


def test_the_code_of_the_page(site: dict[str, str]) -> None:
    """docs/frameworks/django.md, unchanged; only the model is not a real one."""
    from lockfast.integrations.django import FencedDatabase

    page = ROOT / "docs" / "frameworks" / "django.md"
    (block,) = (it for it in blocks_of(page) if it.test == "tests/integrations/test_django.py")
    order = Mock()
    exec(block.code, {"Order": order})
    order.objects.filter.assert_called_once_with(pk=42)
    with pytest.raises(lockfast.StaleTokenError):
        FencedDatabase().execute("orders/42", 1, Mock())


def test_a_lock_is_taken_around_a_transaction_not_inside(site: dict[str, str]) -> None:
    from django.db import transaction

    from lockfast.integrations.django import locked

    with locked("orders/42") as lease, transaction.atomic():
        assert lease.token > 0
    with transaction.atomic(), pytest.raises(lockfast.UnsupportedError, match="before the commit"):
        with locked("orders/42"):
            pytest.fail("the body ran")


def test_a_guard_refuses_an_older_token_in_the_same_transaction(site: dict[str, str]) -> None:
    from django.db import connection, transaction

    from lockfast.integrations.django import guard, locked

    with locked("orders/42") as old:
        pass
    with locked("orders/42") as new, transaction.atomic():
        guard().admit("orders/42", new.token)
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE writes (token INTEGER)")
    with pytest.raises(lockfast.StaleTokenError), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO writes VALUES (%s)", [old.token])
        guard().admit("orders/42", old.token)
    with connection.cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM writes").fetchone() == (0,)
    with pytest.raises(lockfast.UnsupportedError, match="outside a transaction"):
        guard()


def test_a_lease_executes_in_a_transaction_that_is_fenced(site: dict[str, str]) -> None:
    from django.db import connection, transaction

    from lockfast.integrations.django import FencedDatabase, guard, locked

    def insert(value: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS fenced (value INTEGER)")
            cursor.execute("INSERT INTO fenced VALUES (%s)", [value])

    def values() -> list[tuple[int]]:
        with connection.cursor() as cursor:
            return list(cursor.execute("SELECT value FROM fenced").fetchall())

    async def never() -> None:
        pytest.fail("nobody awaits it")

    with locked("orders/43") as lease:
        lease.execute_with_fence(FencedDatabase(), lambda: insert(1))
        with pytest.raises(lockfast.UnsupportedError, match="coroutine function"):
            _ = lease.execute_with_fence(FencedDatabase(), never)
        with pytest.raises(ZeroDivisionError):
            lease.execute_with_fence(FencedDatabase(), lambda: insert(1 // 0))
        with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
            lease.execute_with_fence(FencedDatabase(), lambda: insert(2))
        with transaction.atomic():
            guard().admit("orders/43", lease.token + 1)
        with pytest.raises(lockfast.StaleTokenError):
            lease.execute_with_fence(FencedDatabase(), lambda: insert(3))
    assert values() == [(1,)]


@pytest.mark.parametrize(
    ("setting", "deploy", "message"),
    [
        ({"URL": "memory://"}, True, ""),
        ({"URL": "nowhere://"}, False, "lockfast.E001"),
        ({"ADDRESS": "memory://"}, False, "lockfast.E001"),
        ({"URL": "redis://127.0.0.1:1", "CONNECT_TIMEOUT": 0.2}, False, ""),
        ({"URL": "redis://127.0.0.1:1", "CONNECT_TIMEOUT": 0.2}, True, "lockfast.W001"),
    ],
)
def test_system_checks(site: dict[str, str], setting: Any, deploy: bool, message: str) -> None:
    from django.core.checks import run_checks  # type: ignore[import-untyped]
    from django.test import override_settings  # type: ignore[import-untyped]

    with override_settings(LOCKFAST=setting):
        found = [said.id for said in run_checks(include_deployment_checks=deploy)]
    assert [said for said in found if said.startswith("lockfast.")] == [message] * bool(message)
