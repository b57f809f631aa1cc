"""APScheduler and Alembic as the pages show them: real schedulers and migrations, in processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

import lockfast
from lockfast.errors import StaleTokenError
from lockfast.guards import SqliteGuard
from lockfast.stores.postgresql.schema import guards
from tests.cli.processes import ROOT
from tests.servers.postgresql import PostgresServer
from tests.servers.redis import RedisServer

PATIENCE_S = 90
MIGRATION = '''
"""Not idempotent: a second run of it fails, and so does one beside it."""
from alembic import op

revision = "1"
down_revision = None

def upgrade():
    op.execute("CREATE TABLE orders (id int)")
    op.execute("SELECT pg_sleep(0.3)")
    op.execute("INSERT INTO orders VALUES (1)")
'''


def finish(processes: list[subprocess.Popen[str]]) -> list[str]:
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    return outputs


def test_a_firing_of_apscheduler_runs_on_one_of_three_hosts(
    redis: RedisServer, tmp_path: Path
) -> None:
    journal, url = tmp_path / "journal", redis.url()
    script = str(Path(__file__).with_name("scheduler.py"))
    hosts = [
        subprocess.Popen(
            [sys.executable, script, str(journal), "3"],
            env={**os.environ, "LOCKFAST_URL": url},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(3)
    ]
    finish(hosts)
    lines = [line.split() for line in journal.read_text().splitlines()]
    ran = sorted(float(at) for word, at in lines if word == "ran")
    assert len([word for word, _ in lines if word == "fired"]) == 9
    # The window is measured in the store, from before a run begins. Two log lines may be closer
    # together if the first was written late, but two runs never fit into one window.
    assert 1 <= len(ran) <= 1 + (ran[-1] - ran[0]) / 0.7 + 1


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresServer]:
    with PostgresServer() as started:
        yield started


def test_four_pods_upgrade_with_alembic_at_once(
    redis: RedisServer, postgresql: PostgresServer, tmp_path: Path
) -> None:
    """With the env.py of the page, unchanged."""
    page = (ROOT / "docs" / "frameworks" / "alembic.md").read_text()
    (env,) = re.findall(r"```alembic\n(.*?)```", page, re.DOTALL)
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text(env)
    (folder / "versions" / "1.py").write_text(MIGRATION)
    database = f"postgresql+psycopg://postgres@127.0.0.1:{postgresql.port}/postgres"
    (tmp_path / "alembic.ini").write_text(
        f"[alembic]\nscript_location = {folder}\nsqlalchemy.url = {database}\n"
    )
    postgresql.run(guards("lockfast"))
    url = redis.url()
    pods = [
        subprocess.Popen(
            [sys.executable, "-m", "alembic", "upgrade", "head"],
            cwd=tmp_path,
            env={**os.environ, "LOCKFAST_URL": url},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(4)
    ]
    finish(pods)
    assert postgresql.run("SELECT id FROM orders") == [(1,)]
    assert postgresql.run("SELECT version_num FROM alembic_version") == [("1",)]
    ((floor,),) = postgresql.run("SELECT floor FROM lockfast.floors")
    assert floor > 0


def test_the_guard_of_sqlite_inside_a_session_of_sqlalchemy(tmp_path: Path) -> None:
    """As on the page: check and write commit together, and a rollback undoes both."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")

    def write(token: int, value: str, *, fail: bool = False) -> None:
        with Session(engine) as session, session.begin():
            driver: Any = session.connection().connection.driver_connection
            SqliteGuard(driver).admit("orders/42", token)
            session.execute(sa.text("UPDATE orders SET state = :state"), {"state": value})
            if fail:
                raise ZeroDivisionError

    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE orders (state TEXT)"))
        connection.execute(sa.text("INSERT INTO orders VALUES ('open')"))
    with lockfast.connect(f"memory://{tmp_path.name}") as client:
        with client.lock("orders/42") as old:
            pass
        with client.lock("orders/42") as new:
            with pytest.raises(ZeroDivisionError):
                write(new.token, "half", fail=True)
            write(old.token, "old")  # the rollback undid the floor as well
            write(new.token, "new")
            with pytest.raises(StaleTokenError):
                write(old.token, "stale")
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT state FROM orders")).scalar_one() == "new"
    engine.dispose()
