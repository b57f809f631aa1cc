"""As much of a shell as job control needs: one job, in the foreground of its terminal.

    python job_shell.py [--background] ARGUMENT ...

Prints `[pid N]`, `[stopped SIGNAL]` and `[exit N]`; `fg` continues a stopped job.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios


def main(argv: list[str]) -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    background = argv[0] == "--background"
    job = start(argv[background:], background)
    print(f"[pid {job}]", flush=True)
    if background:
        print_stop(os.waitpid(job, os.WUNTRACED)[1])
        continue_job(job)
    while True:
        status = os.waitpid(job, os.WUNTRACED)[1]
        os.tcsetpgrp(0, os.getpgrp())
        if not os.WIFSTOPPED(status):
            break
        print_stop(status)
        continue_job(job)
    code = os.waitstatus_to_exitcode(status)
    print(f"[exit {128 - code if code < 0 else code}]", flush=True)


def start(argv: list[str], background: bool) -> int:
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        if not background:
            os.tcsetpgrp(0, os.getpid())
        for number in (signal.SIGTTOU, signal.SIGINT, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(argv[0], argv)
    return pid


def print_stop(status: int) -> None:
    assert os.WIFSTOPPED(status)
    print(f"[stopped {signal.Signals(os.WSTOPSIG(status)).name}]", flush=True)


def continue_job(job: int) -> None:
    assert sys.stdin.readline() == "fg\n"
    os.tcsetpgrp(0, job)
    os.killpg(job, signal.SIGCONT)


if __name__ == "__main__":
    main(sys.argv[1:])
