"""`lockfast run` is killed with -9: nothing that its command started keeps working unlocked."""

from __future__ import annotations

import signal

import pytest

from tests.cli.processes import Cli, is_alive, python, until

FAMILY = """
import os, signal
def pause():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()
reader, writer = os.pipe()
for leaves in {leaves}:
    if os.fork() == 0:
        if leaves:
            os.setsid()
        os.write(writer, str(os.getpid()).encode() + b" ")
        pause()
pids = b""
while pids.count(b" ") < len({leaves}):
    pids += os.read(reader, 100)
print(os.getpid(), pids.decode(), flush=True)
pause()
"""


@pytest.mark.parametrize("leaves", [(False,), (True,), (False, True, True)])
def test_the_commands_children_end_with_it(cli: Cli, leaves: tuple[bool, ...]) -> None:
    holder = cli.start("run", "a", "--", *python(FAMILY.format(leaves=leaves)))
    pids = [int(pid) for pid in holder.line().split()]
    assert len(pids) == 1 + len(leaves)
    holder.signal(signal.SIGKILL)
    assert holder.exit_code() == -signal.SIGKILL
    for pid in pids:
        until(lambda pid=pid: not is_alive(pid), f"process {pid} to end")  # type: ignore[misc]


def test_the_url_stays_out_of_the_environment_on_request(cli: Cli) -> None:
    show = ("sh", "-c", 'echo "${LOCKFAST_URL-none} ${LOCKFAST_LOCK-none}"')
    assert cli.run("run", "a", "--", *show).stdout == f"{cli.url} a\n"
    assert cli.run("run", "--hide-url", "a", "--", *show).stdout == "none a\n"
