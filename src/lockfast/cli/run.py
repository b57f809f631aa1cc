"""lockfast run: run a command while holding a lock."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterable
from typing import Final

from lockfast.api.blocking import Client, Lease, Once
from lockfast.cli import exit_codes
from lockfast.cli.child import Child, find_program
from lockfast.cli.connection import open_client, program_label
from lockfast.cli.formatting import write_error
from lockfast.cli.guardian import Guardian
from lockfast.cli.signals import Signals
from lockfast.cli.supervisor import OnLost, Supervisor
from lockfast.cli.terminal import Terminal
from lockfast.cli.waiting import WaitingLine
from lockfast.errors import LeaseLostError, OutcomeUnknownError
from lockfast.flow.once import Outcome

SECRETS: Final = ("LOCKFAST_URL", "LOCKFAST_URL_FILE")
"""Variables that --hide-url keeps from the command."""


def run(arguments: argparse.Namespace) -> int:
    """Hold the lock while the command runs; return the exit code of `lockfast run`."""
    # Look for the program first: a typo should not wait for the lock.
    path = find_program(arguments.argv[0])
    on_lost = OnLost.of(arguments.on_lost, arguments.signal, arguments.grace, arguments.ttl)
    terminal = Terminal.find()
    child = Child.stand_by(path, arguments.argv, on_lost.death_signal)
    guardian = Guardian(child.pid) if on_lost.how == "term" else None
    signals = Signals()
    try:
        owner = program_label(arguments.argv[0])
        # No death watch: if this process dies, its child may still be running.
        with open_client(arguments, owner, death_watch=False) as client:
            once = _once(client, arguments)
            lease = once._take() if once is not None else _acquire(client, arguments, terminal)
            if not isinstance(lease, Lease):
                return _skip(lease, arguments.name)
            signals.to_stream()
            supervisor = Supervisor(child, lease, on_lost, signals, terminal)
            code = exit_codes.INTERNAL
            try:
                if guardian is not None:
                    guardian.watch(lease.session)
                secrets = SECRETS if arguments.hide_url else ()
                code = _run_command(supervisor, child, lease, terminal, secrets)
            finally:
                if terminal is not None:
                    terminal.take_back()
                if once is None:
                    lost = _release(lease)
                else:
                    lost = ""
                    once._finish(lease, went_well=code == 0)
    finally:
        if guardian is not None:
            guardian.dismiss()
        child.dismiss()
    if on_lost.how == "term" and (supervisor.loss or lost):
        code = exit_codes.LEASE_LOST
    if supervisor.loss or lost:
        write_error(_loss_message(supervisor.loss or lost, on_lost.how, bool(supervisor.loss)))
    _interrupt_script(code, terminal)
    return code


def _once(client: Client, arguments: argparse.Namespace) -> Once | None:
    if not arguments.once:
        return None
    return client.once(
        arguments.name,
        at_least=arguments.at_least,
        at_most=arguments.at_most,
        wait=arguments.wait,
    )


def _skip(outcome: Outcome, name: str) -> int:
    if outcome is not Outcome.FAILED:
        return exit_codes.OK
    write_error(f"{name!r} failed at another host and is not run again in this window")
    return exit_codes.NOT_OBTAINED


def _acquire(client: Client, arguments: argparse.Namespace, terminal: Terminal | None) -> Lease:
    lock = client.lock(arguments.name, priority=arguments.priority)
    if arguments.timeout == 0:
        return lock.acquire(timeout=0)
    with WaitingLine(client, arguments.name, terminal):
        return lock.acquire(timeout=arguments.timeout)


def _run_command(
    supervisor: Supervisor,
    child: Child,
    lease: Lease,
    terminal: Terminal | None,
    secrets: Iterable[str],
) -> int:
    lease.check()
    if terminal is not None and terminal.is_all_ours() and terminal.is_ours():
        terminal.give(child.pid)
    child.start(
        {
            **dict.fromkeys(secrets),
            "LOCKFAST_LOCK": lease.name,
            "LOCKFAST_FENCE": str(lease.token),
            "LOCKFAST_SESSION": lease.session,
        }
    )
    supervisor.supervise()
    return child.status if child.status is not None else exit_codes.LEASE_LOST


def _release(lease: Lease) -> str:
    """Release the lease; return how it was lost if the store reports a loss, else ""."""
    try:
        lease.release()
    except LeaseLostError as error:
        return f"lease on {error.name!r} (token {error.token}) was lost: {error.reason}"
    except OutcomeUnknownError as error:
        write_error(str(error))
    return ""


def _loss_message(loss: str, how: str, while_running: bool) -> str:
    if not while_running:
        return f"{loss}; this was noticed only after the command had ended"
    if how == "term":
        return f"{loss}; the command was stopped"
    if how == "signal":
        return f"{loss}; the command was sent the signal"
    return f"{loss}; the command went on without it"


def _interrupt_script(code: int, terminal: Terminal | None) -> None:
    """After Ctrl-C in the command, interrupt the calling shell script as well.

    A shell stops its script only if it received SIGINT itself and its child died of SIGINT. The
    command had the terminal, so neither happened; we send SIGINT to our group, us included.
    """
    if code != exit_codes.BY_SIGNAL + signal.SIGINT or terminal is None or not terminal.was_given:
        return
    if os.getpgrp() == os.getpid():
        return  # an interactive shell started us in our own group: there is no script
    sys.stdout.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.killpg(0, signal.SIGINT)
