"""release_on_exit_signals(): a holder that is asked to exit releases its locks."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import lockfast

PATIENCE_S = 60.0
PLAIN = """
import sys, time, lockfast
{before}
lockfast.release_on_exit_signals()
client = lockfast.connect(sys.argv[1], ttl=600)
with client.lock("a"):
    kept = client.lock("b").acquire()
    print("ready", flush=True)
    {work}
"""
ASYNC = """
import asyncio, sys, lockfast, lockfast.aio
lockfast.release_on_exit_signals()
async def main():
    async with lockfast.aio.connect(sys.argv[1], ttl=600) as client, client.lock("a"):
        print("ready", flush=True)
        await asyncio.sleep(3600)
asyncio.run(main())
"""
HANDLED = """
import signal
asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
"""


def url(tmp_path: Path) -> str:
    # Without the death watch only a release can free the locks in time.
    return f"sqlite://{tmp_path}/locks.db?death_watch=off"


def ended_by(number: int, program: str, tmp_path: Path) -> int:
    """Return the exit code of a program that got a signal while it held its locks."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, url(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        return process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.communicate()


def assert_free(tmp_path: Path, *names: str) -> None:
    with lockfast.connect(url(tmp_path)) as client:
        for name in names:
            client.lock(name).acquire(timeout=0).release()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_plain_holder_releases_and_says_which_signal(number: int, tmp_path: Path) -> None:
    program = PLAIN.format(before="", work="time.sleep(3600)")
    assert ended_by(number, program, tmp_path) == 128 + number
    assert_free(tmp_path, "a", "b")


def test_without_it_the_locks_stay(tmp_path: Path) -> None:
    program = PLAIN.format(before="", work="time.sleep(3600)")
    program = program.replace("lockfast.release_on_exit_signals()", "")
    assert ended_by(signal.SIGTERM, program, tmp_path) == -signal.SIGTERM
    with lockfast.connect(url(tmp_path)) as client:
        assert client.lock("a").try_acquire() is None


def test_a_task_is_cancelled_and_releases(tmp_path: Path) -> None:
    assert ended_by(signal.SIGTERM, ASYNC, tmp_path) == 128 + signal.SIGTERM
    assert_free(tmp_path, "a")


def test_a_handler_that_is_there_decides(tmp_path: Path) -> None:
    work = "\n    ".join(["while not asked:", "    time.sleep(0.01)", "sys.exit(7)"])
    program = PLAIN.format(before=HANDLED, work=work)
    assert ended_by(signal.SIGTERM, program, tmp_path) == 7
    assert_free(tmp_path, "a", "b")


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    term = signal.getsignal(signal.SIGTERM)
    try:
        lockfast.release_on_exit_signals()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.signal(signal.SIGTERM, term)


def test_it_must_be_called_from_the_main_thread() -> None:
    errors: list[BaseException] = []

    def call() -> None:
        try:
            lockfast.release_on_exit_signals()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])
