"""What one can type."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from lockfast import __version__
from lockfast.api import settings
from lockfast.core.modes import LOCK
from lockfast.errors import LockfastError
from lockfast.flow.watch import KINDS

T = TypeVar("T")

DESCRIPTION = "Locks between processes and machines, with a fencing token on every grant."
EPILOG = """\
Where the locks are kept: --url, else LOCKFAST_URL, else a file of this user.
Others see us as: --owner, else LOCKFAST_OWNER, else host, pid and program.
`lockfast COMMAND --help` tells the rest.
"""
RUN_EPILOG = """\
CMD finds in its environment:
  LOCKFAST_LOCK      the lock's name
  LOCKFAST_FENCE     the fencing token; hand it to whatever CMD writes to
  LOCKFAST_SESSION   the session that holds the lock

exit codes:
  CMD's own, or 128 + n if signal n ended it
  2    wrong usage                  75   the lock was not obtained
  69   the store is unreachable     76   the lease was lost and CMD was stopped
  77   the store denied access      126, 127   CMD cannot be executed, was not found

examples:
  lockfast run nightly-report -- ./report.sh --all
  lockfast run deploy --no-wait -- make deploy || echo "somebody is at it"
  lockfast run import --ttl 60 --grace 20 -- python import.py
"""
SHOW_EPILOG = "exit codes: 0 if somebody holds the lock, 1 if it is free"
DEADLOCKS_EPILOG = """\
Programs end their deadlocks themselves, after `deadlock_after` seconds. What is seen here
is younger than that, or of programs that look more rarely.

exit codes: 0 if there are none, 1 if there are
"""
WATCH_EPILOG = """\
With --json every line is an object with `what` and `position`. `what` is an event, or
`gap` if events were missed; then `locks` is the state to go on from.
"""
REVOKE_EPILOG = """\
The holder is told by whom and why, and the next in line gets the lock at once. The
holder's work may go on until it notices; only a guard keeps it from writing.

exit codes: 0 if something was revoked, 1 if there was nothing to revoke
"""

DOCTOR_EPILOG = """\
exit codes: 0 if the store is safe for locks, 2 if it is not, 69 if it is unreachable

examples:
  lockfast doctor redis://cache.internal            check the server and the namespace
  lockfast doctor --repair redis://cache.internal   and repair rows that a crash left damaged
  lockfast doctor --dump sqlite:///var/lib/app/locks.db | less
"""
RESET_EPILOG = """\
Every lock of the namespace is free afterwards, although its holder may still be at work: only a
guard keeps that holder from writing. Tokens keep rising. Use it when `lockfast doctor --repair`
does not help.

exit codes: 0 if the namespace was reset, 1 if you declined, 69 if the store is unreachable

examples:
  lockfast reset staging --url redis://cache.internal
  lockfast reset default --yes      the namespace of programs that name none
"""
SIMULATE_EPILOG = """\
SCENARIO is one of
  turns  crash  pause  zombie  split-brain  failover  lost-reply  clock-jump
  thundering-herd  deadlock  priority  ttl-too-short  majority
or a TOML file that a search has left, or that you wrote. Needs: pip install 'lockfast[sim]'

exit codes: 0 if all promises were kept, 1 if one was broken, 2 for wrong usage

examples:
  lockfast simulate zombie --seed 7              a refused write, and zombie-7.html
  lockfast simulate zombie --seed 7 --no-guard   the same write gets through
"""
CHECK_EPILOG = """\
Any program that uses Lockfast records a history when LOCKFAST_HISTORY names a file;
processes of one machine may share it.

exit codes: 0 if all promises were kept, 1 if one was broken, 2 if it is no history
"""


class Parser(argparse.ArgumentParser):
    """An argparse parser whose complaints look like all others."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"lockfast: {message}\n{self.format_usage()}")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments as a namespace; `command` names the subcommand.

    Whatever stands behind the `--` of `run` is the command's alone: it is cut off
    before anything is parsed, so that no option of it is taken for ours.
    """
    parser = _parser()
    head, tail = list(argv), None
    if head[:1] == ["run"] and "--" in head:
        at = head.index("--")
        head, tail = head[:at], head[at + 1 :]
    arguments, unknown = parser.parse_known_args(head)
    subparser: Parser = getattr(arguments, "parser", parser)
    if arguments.command == "run":
        if tail is None:
            subparser.error("CMD goes behind a --, as in: lockfast run NAME -- CMD")
        if not tail:
            subparser.error("there is no CMD behind the --")
        arguments.argv = tail
        _check_run(subparser, arguments)
    if unknown:
        subparser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments


def _parser() -> Parser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog="lockfast",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"lockfast {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def tool(name: str, about: str, epilog: str = "", usage: str | None = None) -> Parser:
        made: Parser = commands.add_parser(
            name,
            help=about,
            description=about[:1].upper() + about[1:] + ".",
            epilog=epilog,
            usage=usage,
            formatter_class=formatter,
            allow_abbrev=False,
        )
        made.set_defaults(parser=made)
        return made

    def command(name: str, about: str, epilog: str = "", usage: str | None = None) -> Parser:
        made = tool(name, about, epilog, usage)
        made.add_argument("--url", help="where the locks are kept")
        made.add_argument("--owner", type=_owner, help="the label others see")
        return made

    _run_options(
        command(
            "run",
            "run a command while holding a lock",
            RUN_EPILOG,
            "lockfast run NAME [options] -- CMD [ARGUMENT ...]",
        )
    )
    ls = command("ls", "list the locks in use")
    ls.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="of their names")
    show = command("show", "show who holds a lock and who waits for it", SHOW_EPILOG)
    show.add_argument("name", metavar="NAME")
    sessions = command("sessions", "list the clients of the store")
    sessions.add_argument("--all", action="store_true", help="also those that ended lately")
    deadlocks = command("deadlocks", "show who waits for each other for ever", DEADLOCKS_EPILOG)
    watch = command("watch", "follow what happens to locks", WATCH_EPILOG)
    watch.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="of their names")
    watch.add_argument(
        "--after", type=_position, metavar="POSITION", help="begin behind this position of the log"
    )
    for lister in (ls, watch):
        lister.add_argument("--kind", choices=KINDS, help="only these (default: every kind)")
    ls.add_argument(
        "--tree", action="store_true", help="only tree locks, each below the one it is in"
    )
    doctor = command("doctor", "check whether a store is safe for locks", DOCTOR_EPILOG)
    doctor.add_argument("where", nargs="?", metavar="URL", help="the store, instead of --url")
    action = doctor.add_mutually_exclusive_group()
    action.add_argument(
        "--repair",
        action="store_true",
        help="first repair damaged rows; intact locks stay held, tokens keep rising",
    )
    action.add_argument(
        "--dump", action="store_true", help="print everything stored, as text, and check nothing"
    )
    action.add_argument(
        "--raise-epoch",
        action="store_true",
        help="etcd, after a restore from a backup: lift tokens above all given before",
    )
    reset = command("reset", "delete every session and lock of a namespace", RESET_EPILOG)
    reset.add_argument("namespace", metavar="NAMESPACE", help="its name; there is no default")
    reset.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    for reader in (ls, show, sessions, deadlocks, watch, doctor, reset):
        reader.add_argument("--json", action="store_true", help="for programs to read")
    revoke = command("revoke", "take a lock from its holder, or end a session", REVOKE_EPILOG)
    what = revoke.add_mutually_exclusive_group(required=True)
    what.add_argument("name", nargs="?", metavar="NAME")
    what.add_argument("--session", metavar="ID", help="end this session with all its locks")
    revoke.add_argument("--reason", required=True, type=_reason, help="what the holder is told")
    revoke.add_argument("--yes", action="store_true", help="do not ask")
    for chooser in (show, revoke):
        chooser.add_argument(
            "--kind", choices=KINDS, default=LOCK, help="what NAME is (default: lock)"
        )
    _simulate_options(tool("simulate", "play a scenario in virtual time", SIMULATE_EPILOG))
    check = tool("check", "judge a history that clients recorded", CHECK_EPILOG)
    check.add_argument("history", type=Path, metavar="FILE")
    check.add_argument("--forgets", action="store_true", help="its store may lose what it promised")
    check.add_argument("--html", type=Path, metavar="FILE", help="write a page with a timeline")
    check.add_argument("--json", action="store_true", help="for programs to read")
    return parser


def _simulate_options(parser: Parser) -> None:
    parser.add_argument("scenario", metavar="SCENARIO")
    parser.add_argument("--seed", type=int, metavar="N", help="(default: 1, or that of the file)")
    parser.add_argument("--no-guard", action="store_true", help="let every write through")
    drawing = parser.add_mutually_exclusive_group()
    drawing.add_argument(
        "--html", type=Path, metavar="FILE", help="where to draw it (default: SCENARIO-N.html)"
    )
    drawing.add_argument("--no-html", action="store_true", help="only tell it")


def _run_options(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME")
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument(
        "--timeout",
        type=_timeout,
        metavar="S",
        help="give up waiting after S seconds (default: wait for ever)",
    )
    waiting.add_argument(
        "--no-wait",
        action="store_const",
        dest="timeout",
        const=0.0,
        help="take it at once or not at all; the same as --timeout 0",
    )
    parser.add_argument(
        "--ttl",
        type=_ttl,
        metavar="S",
        help="how long the lock outlives us if we die (default: LOCKFAST_TTL, else 30)",
    )
    parser.add_argument(
        "--priority",
        type=_priority,
        default=0,
        metavar="N",
        help="a head start in the line, 10 seconds each (default: 0)",
    )
    parser.add_argument(
        "--on-lost",
        choices=("term", "signal", "ignore"),
        default="term",
        help="when the lease is lost: end CMD and its process group by SIGTERM, then SIGKILL "
        "(term, the default); only send CMD a signal; or let it go on",
    )
    parser.add_argument(
        "--signal", type=_signal, metavar="NAME", help="for --on-lost signal (default: TERM)"
    )
    parser.add_argument(
        "--grace",
        type=_grace,
        metavar="S",
        help="how long before the lease ends CMD is told, and how long it then has until "
        "SIGKILL; at most half the ttl (default: 10, or a third of the ttl if that is less)",
    )


def _check_run(parser: Parser, arguments: argparse.Namespace) -> None:
    if arguments.signal is not None and arguments.on_lost != "signal":
        parser.error("--signal goes with --on-lost signal")
    if arguments.ttl is None:
        arguments.ttl = _checked(parser, settings.default_ttl)
        _checked(parser, lambda: settings.ttl_to_ms(arguments.ttl))
    if arguments.grace is None:
        arguments.grace = min(10.0, arguments.ttl / 3)
    if arguments.grace > arguments.ttl / 2:
        # A keep-alive is due after a third of the TTL. A grace that reaches back to it
        # would stop the command at the first hiccup instead of trying again.
        parser.error(
            f"--grace {arguments.grace:g} is more than half of the ttl of {arguments.ttl:g} s, "
            f"so that one late keep-alive would stop CMD; use --ttl {arguments.grace * 2:g}"
        )


def _checked(parser: Parser, make: Callable[[], T]) -> T:
    try:
        return make()
    except ValueError as error:
        parser.error(str(error))


# ── values ───────────────────────────────────────────────────────────────────────────


def _seconds(text: str, what: str) -> float:
    try:
        value = float(text)
        settings.to_ms(value, what)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds, zero or more"
        ) from None
    return value


def _timeout(text: str) -> float:
    return _seconds(text, "timeout")


def _grace(text: str) -> float:
    return _seconds(text, "grace")


def _ttl(text: str) -> float:
    value = _seconds(text, "ttl")
    try:
        settings.ttl_to_ms(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return value


def _priority(text: str) -> int:
    try:
        return settings.check_priority(int(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number from -{settings.PRIORITY_MAX} "
            f"to {settings.PRIORITY_MAX}"
        ) from None


def _position(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a position of the log")
    return int(text)


def _signal(text: str) -> signal.Signals:
    name = text.upper().removeprefix("SIG")
    try:
        return signal.Signals(int(name)) if name.isdigit() else signal.Signals[f"SIG{name}"]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"there is no signal {text!r}") from None


def _owner(text: str) -> str:
    return _text(text, "owner", settings.OWNER_BYTES_MAX)


def _reason(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("the holder wants to know why")
    return _text(text, "reason", settings.METADATA_BYTES_MAX)


def _text(text: str, what: str, bytes_max: int) -> str:
    try:
        return settings.check_text(text, what, bytes_max)
    except (ValueError, LockfastError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
