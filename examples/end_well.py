"""A plain program that is sent SIGTERM releases its lock before it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

import lockfast


def worker(url: str) -> None:
    lockfast.release_on_exit_signals()
    with lockfast.connect(url, ttl=600) as client, client.lock("report"):
        print("ready", flush=True)
        signal.pause()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite://{directory}/locks.db?death_watch=off"
        process = subprocess.Popen([sys.executable, __file__, url], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGTERM)
        print("exit code:", process.wait())
        process.stdout.close()
        with lockfast.connect(url) as client:
            client.lock("report").acquire(timeout=0).release()
            print("the lock is free, long before its TTL of 600 s")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        worker(sys.argv[1])
    else:
        main()
