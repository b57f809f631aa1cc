"""From `pip install` to the first lock: the files of a page, unchanged, in an empty directory.

At most ten lines of code for each framework, run by the framework's own commands.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.docs.pages import ROOT
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

PATIENCE_S = 60
LINES_MAX = 10
PAGES = ROOT / "docs" / "frameworks"


def first_lock(page: str) -> tuple[list[str], list[str]]:
    """Return the Python blocks and the shell commands of the section "The first lock"."""
    text = (PAGES / page).read_text(encoding="utf-8")
    _, _, section = text.partition("## The first lock\n")
    section, _, _ = section.partition("\n## ")
    python = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    shell = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    lines = [line for block in python for line in block.splitlines() if line.strip()]
    assert len(lines) <= LINES_MAX
    return python, "".join(shell).splitlines()


@contextmanager
def running(
    directory: Path, *arguments: str, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", *arguments],
        cwd=directory,
        env={**os.environ, "XDG_STATE_HOME": str(directory), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def answer(url: str, method: str) -> str:
    """Return what a server answers once it listens."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            response = httpx.request(method, url, timeout=PATIENCE_S)
        except httpx.ConnectError:
            assert time.monotonic() < until
            time.sleep(0.05)
        else:
            assert response.status_code == 200, response.text
            return response.text


def test_fastapi(tmp_path: Path) -> None:
    (main,), shell = first_lock("fastapi.md")
    (tmp_path / "main.py").write_text(main)
    port = str(free_port())
    assert "uvicorn main:app" in shell
    with running(tmp_path, "uvicorn", "main:app", "--port", port):
        assert re.fullmatch(
            r'\{"fence":\d{16}\}', answer(f"http://127.0.0.1:{port}/orders/42", "POST")
        )


def test_django(tmp_path: Path) -> None:
    (settings, urls), shell = first_lock("django.md")
    assert shell[1:3] == ["django-admin startproject shop .", "python manage.py runserver"]
    start = [sys.executable, "-m", "django", "startproject", "shop", "."]
    subprocess.run(start, cwd=tmp_path, check=True, timeout=PATIENCE_S)
    with (tmp_path / "shop" / "settings.py").open("a") as file:
        file.write(settings)
    (tmp_path / "shop" / "urls.py").write_text(urls)
    port = str(free_port())
    with running(tmp_path, "manage", "runserver", "--noreload", port):
        text = answer(f"http://127.0.0.1:{port}/orders/42/pay", "GET")
    assert re.fullmatch(r"paid with token \d{16}", text)


def test_celery(tmp_path: Path) -> None:
    (shop,), shell = first_lock("celery.md")
    assert shell[1] == "celery -A shop worker"
    with RedisServer(port=free_port()) as redis:
        url = f"redis://127.0.0.1:{redis.port}"
        (tmp_path / "shop.py").write_text(shop.replace("redis://localhost", url))
        with running(
            tmp_path, "celery", "-A", "shop", "worker", "--concurrency=1", "-l", "INFO"
        ) as worker:
            call = [sys.executable, "-m", *shell[2].replace("'", "").split()]
            subprocess.run(call, cwd=tmp_path, check=True, capture_output=True, timeout=PATIENCE_S)
            assert worker.stdout is not None
            token = next(
                filter(
                    None, (re.search(r"succeeded in .*: (\d{16})$", line) for line in worker.stdout)
                )
            )
    assert int(token[1]) > 0
