"""run: a command under a lock."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from lockfast.api.blocking import Lease
from lockfast.cli import codes
from lockfast.cli.app import say
from lockfast.cli.child import Child, find_program
from lockfast.cli.client import open_client, program_label
from lockfast.cli.signals import Signals
from lockfast.cli.supervise import OnLost, Supervisor
from lockfast.cli.terminal import Terminal
from lockfast.errors import LeaseLostError, OutcomeUnknownError


def run(arguments: argparse.Namespace) -> int:
    """Hold the lock while the command runs; returns what `lockfast run` exits with."""
    # Before we wait for hours and then cannot run it.
    path = find_program(arguments.argv[0])
    on_lost = OnLost.of(arguments.on_lost, arguments.signal, arguments.grace, arguments.ttl)
    terminal = Terminal.find()
    child = Child.stand_by(path, arguments.argv, on_lost.death_signal)
    signals = Signals()
    try:
        owner = program_label(arguments.argv[0])
        # Without death watch: our child may outlive us, so the lock has to.
        with open_client(arguments, owner, death_watch=False) as client:
            lock = client.lock(arguments.name, priority=arguments.priority)
            lease = lock.acquire(timeout=arguments.timeout)
            signals.to_stream()
            supervisor = Supervisor(child, lease, on_lost, signals, terminal)
            try:
                code = _run_command(supervisor, child, lease, terminal)
            finally:
                if terminal is not None:
                    terminal.take_back()
                lost = _give_back(lease)
    finally:
        child.dismiss()
    if on_lost.how == "term" and (supervisor.loss or lost):
        code = codes.LEASE_LOST
    if supervisor.loss or lost:
        say(_epitaph(supervisor.loss or lost, on_lost.how, bool(supervisor.loss)))
    _interrupt_neighbours(code, terminal)
    return code


def _run_command(
    supervisor: Supervisor, child: Child, lease: Lease, terminal: Terminal | None
) -> int:
    lease.check()
    if terminal is not None and terminal.is_all_ours() and terminal.is_ours():
        terminal.give(child.pid)
    child.start(
        {
            "LOCKFAST_LOCK": lease.name,
            "LOCKFAST_FENCE": str(lease.token),
            "LOCKFAST_SESSION": lease.session,
        }
    )
    supervisor.watch_over()
    return child.status if child.status is not None else codes.LEASE_LOST


def _give_back(lease: Lease) -> str:
    """Release; returns how the lease was lost if it turns out that it was."""
    try:
        lease.release()
    except LeaseLostError as error:
        return f"lease on {error.name!r} (token {error.token}) was lost: {error.reason}"
    except OutcomeUnknownError as error:
        say(str(error))
    return ""


def _epitaph(loss: str, how: str, noticed: bool) -> str:
    if not noticed:
        return f"{loss}; this came out only after the command had ended"
    if how == "term":
        return f"{loss}; the command was stopped"
    if how == "signal":
        return f"{loss}; the command was told"
    return f"{loss}; the command went on without it"


def _interrupt_neighbours(code: int, terminal: Terminal | None) -> None:
    """Ctrl-C at a terminal that was the command's is for the script around us, too.

    A shell goes on with its script unless it was interrupted itself and its child died
    of that; so we die of it, together with our group.
    """
    if code != codes.BY_SIGNAL + signal.SIGINT or terminal is None or not terminal.was_given:
        return
    if os.getpgrp() == os.getpid():
        return  # the group is ours: there is no script
    sys.stdout.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.killpg(0, signal.SIGINT)
