"""Three pods start at once: one migrates, the others wait for it and go on."""

from __future__ import annotations

import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import lockfast

POD_COUNT = 3


def pod(url: str, log: str) -> None:
    with lockfast.connect(url) as client:
        once = client.once("migrate-v7", at_least=600, at_most=1800, wait=True)
        outcome, _ = once.run(migrate, log)
        if outcome is lockfast.Outcome.FAILED:
            sys.exit("the migration failed at another pod")
        write(log, f"start to serve: {outcome}")


def migrate(log: str) -> None:
    write(log, "migrate")


def write(log: str, line: str) -> None:
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        url, log = f"sqlite://{directory}/locks.db", f"{directory}/log"
        pods = [get_context("spawn").Process(target=pod, args=(url, log)) for _ in range(POD_COUNT)]
        for each in pods:
            each.start()
        for each in pods:
            each.join()
        lines = Path(log).read_text(encoding="utf-8").splitlines()
    print("migrations:", lines.count("migrate"))
    print("first:", lines[0])
    print("ran:", lines.count("start to serve: ran"))
    print("waited:", lines.count("start to serve: done"))


if __name__ == "__main__":
    main()
