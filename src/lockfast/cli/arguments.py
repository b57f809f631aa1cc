"""The command line's grammar: commands, options, and checks before anything runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from lockfast import __version__
from lockfast.api import settings
from lockfast.cli import argument_types as types
from lockfast.cli import help_texts
from lockfast.cli.formatting import safe_text
from lockfast.core.modes import LOCK
from lockfast.flow.watch import KINDS
from lockfast.stores.lockserver.paths import server_directory
from lockfast.stores.registry import label_of

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """An argparse parser whose error messages look like all others and show no password."""

    commands: Iterable[str] = ()

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"lockfast: {safe_text(message)}\n{self.format_usage()}")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments as a namespace; `command` names the subcommand.

    What follows the `--` of `run` belongs to CMD. It is split off before parsing, so that no option
    of CMD is taken for ours.
    """
    parser = make_parser()
    head, tail = list(argv), None
    if head[:1] == ["run"] and "--" in head:
        at = head.index("--")
        head, tail = head[:at], head[at + 1 :]
    _check_command(parser, head)
    arguments, unknown = parser.parse_known_args(head)
    subparser: Parser = getattr(arguments, "parser", parser)
    if arguments.command == "run":
        if tail is None:
            subparser.error("put -- before CMD: lockfast run NAME -- CMD")
        if not tail:
            subparser.error("there is no CMD after the --")
        arguments.argv = tail
    if arguments.command in ("run", "doctor") and arguments.ttl is None:
        arguments.ttl = _checked(subparser, settings.default_ttl)
        _checked(subparser, lambda: settings.ttl_to_ms(arguments.ttl))
    if arguments.command == "run":
        _check_run(subparser, arguments)
    if unknown:
        subparser.error(f"unrecognized arguments: {' '.join(map(label_of, unknown))}")
    return arguments


def _check_command(parser: Parser, head: Sequence[str]) -> None:
    """Refuse an unknown command; argparse would list all of them."""
    word = next(iter(head), "-")
    if not word.startswith("-") and word not in parser.commands:
        from difflib import get_close_matches

        close = get_close_matches(word, parser.commands, n=1)
        advice = f"did you mean {close[0]}?" if close else "lockfast --help lists them"
        parser.error(f"there is no command {label_of(word)!r}; {advice}")


def make_parser() -> Parser:
    parser = Parser(
        prog="lockfast",
        description=help_texts.DESCRIPTION,
        epilog=help_texts.LOCKFAST,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"lockfast {__version__}")
    commands = _Commands(parser)
    run = commands.on_store(
        "run",
        "run a command while holding a lock",
        help_texts.RUN,
        "lockfast run NAME [options] -- CMD [ARGUMENT ...]",
    )
    _add_run_options(run)
    _add_views(commands)
    _add_interventions(commands)
    _add_judges(commands)
    _add_services(commands)
    completion = commands.tool(
        "completion", "print a completion script for a shell", help_texts.COMPLETION
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    return parser


class _Commands:
    """The subcommands of a parser, in the order in which `--help` lists them."""

    def __init__(self, parser: Parser) -> None:
        self._subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
        parser.commands = self._subparsers.choices

    def tool(self, name: str, about: str, epilog: str, usage: str | None = None) -> Parser:
        """Add a command that needs no store."""
        made: Parser = self._subparsers.add_parser(
            name,
            help=about,
            description=about[:1].upper() + about[1:] + ".",
            epilog=epilog,
            usage=usage,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        made.set_defaults(parser=made)
        return made

    def on_store(self, name: str, about: str, epilog: str, usage: str | None = None) -> Parser:
        """Add a command that uses a store."""
        made = self.tool(name, about, epilog, usage)
        store = made.add_mutually_exclusive_group()
        store.add_argument("--url", help="the store (default: LOCKFAST_URL, else a local file)")
        store.add_argument("--url-file", metavar="FILE", help="a file that holds the store's URL")
        made.add_argument("--owner", type=types.owner, help="the label that others see")
        return made


# ── options that several commands have ───────────────────────────────────────────────


def _add_prefix(parser: Parser) -> None:
    parser.add_argument(
        "prefix", nargs="?", default="", metavar="PREFIX", help="the beginning of their names"
    )


def _add_kind_of_name(parser: Parser) -> None:
    parser.add_argument(
        "--kind", choices=KINDS, default=LOCK, help="the kind of NAME (default: lock)"
    )


def _add_kind_filter(parser: Parser) -> None:
    parser.add_argument("--kind", choices=KINDS, help="only this kind (default: every kind)")


def _add_watch_for(parser: Parser) -> None:
    parser.add_argument(
        "--for",
        dest="watch_for",
        type=types.seconds,
        default=5.0,
        metavar="S",
        help="also watch for S (default: 5s)",
    )


def _add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_yes(parser: Parser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


# ── groups of commands ───────────────────────────────────────────────────────────────


def _add_views(commands: _Commands) -> None:
    ls = commands.on_store("ls", "list the locks in use", help_texts.LS)
    _add_prefix(ls)
    _add_kind_filter(ls)
    ls.add_argument("--tree", action="store_true", help="only tree locks, indented")
    _add_json(ls)
    show = commands.on_store("show", "show who holds a lock and who waits for it", help_texts.SHOW)
    show.add_argument("name", metavar="NAME")
    _add_kind_of_name(show)
    _add_json(show)
    sessions = commands.on_store("sessions", "list the clients of the store", help_texts.SESSIONS)
    sessions.add_argument("--all", action="store_true", help="also those that ended recently")
    _add_json(sessions)
    deadlocks = commands.on_store(
        "deadlocks", "show claims that wait for each other", help_texts.DEADLOCKS
    )
    deadlocks.add_argument(
        "--graph",
        choices=("text", "dot", "mermaid", "json", "html"),
        help="print who waits for whom instead, deadlocked or not",
    )
    _add_json(deadlocks)
    watch = commands.on_store("watch", "follow the events of locks", help_texts.WATCH)
    watch.add_argument(
        "--after",
        type=types.position,
        metavar="POSITION",
        help="start after this position of the event log (default: now)",
    )
    _add_prefix(watch)
    _add_kind_filter(watch)
    _add_json(watch)
    stats = commands.on_store("stats", "show waits, holds, contention and losses", help_texts.STATS)
    _add_watch_for(stats)
    _add_prefix(stats)
    _add_json(stats)
    report = commands.on_store(
        "report", "write an HTML page about what happened", help_texts.REPORT
    )
    report.add_argument("--html", type=Path, metavar="FILE", required=True, help="where to write")
    report.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE",
        help="a history, or the output of `lockfast watch --json` (default: the store's log)",
    )
    _add_watch_for(report)
    _add_prefix(report)
    top = commands.on_store("top", "watch locks, queues and sessions live", help_texts.TOP)
    _add_prefix(top)
    top.add_argument(
        "--every", type=types.seconds, default=1.0, metavar="S", help="refresh (default: 1s)"
    )


def _add_interventions(commands: _Commands) -> None:
    revoke = commands.on_store(
        "revoke", "take a lock from its holders, or end a session", help_texts.REVOKE
    )
    what = revoke.add_mutually_exclusive_group(required=True)
    what.add_argument("name", nargs="?", metavar="NAME")
    what.add_argument("--session", metavar="ID", help="end this session and release its locks")
    revoke.add_argument(
        "--reason", required=True, type=types.reason, help="why; the holder receives it"
    )
    _add_kind_of_name(revoke)
    _add_yes(revoke)
    doctor = commands.on_store(
        "doctor", "check whether a store is safe for locks", help_texts.DOCTOR
    )
    _add_doctor_options(doctor)
    _add_json(doctor)
    reset = commands.on_store(
        "reset", "delete every session and lock of a namespace", help_texts.RESET
    )
    reset.add_argument("namespace", metavar="NAMESPACE", help="its name; there is no default")
    _add_yes(reset)
    _add_json(reset)


def _add_judges(commands: _Commands) -> None:
    simulate = commands.tool("simulate", "play a scenario in virtual time", help_texts.SIMULATE)
    _add_simulate_options(simulate)
    check = commands.tool("check", "judge a history that clients recorded", help_texts.CHECK)
    check.add_argument("history", type=Path, metavar="FILE")
    check.add_argument(
        "--forgets", action="store_true", help="the store may lose data: judge the tokens only"
    )
    check.add_argument("--html", type=Path, metavar="FILE", help="write a page with a timeline")
    _add_json(check)
    advise_ttl = commands.on_store(
        "advise-ttl", "say which TTL would have lost leases", help_texts.ADVISE_TTL
    )
    _add_advise_ttl_options(advise_ttl)
    _add_json(advise_ttl)


def _add_services(commands: _Commands) -> None:
    schema = commands.tool(
        "schema", "print the SQL that a database needs for Lockfast", help_texts.SCHEMA
    )
    schema.add_argument("store", choices=("postgresql",))
    schema.add_argument("--schema", default="lockfast", metavar="NAME", help="instead of lockfast")
    schema.add_argument("--guards", action="store_true", help="only what guards need")
    schema.add_argument(
        "--since", type=int, default=0, metavar="VERSION", help="migrate from an older version"
    )
    _add_serve_options(commands.tool("serve", "serve a store over HTTP", help_texts.SERVE))
    _add_token_options(commands.tool("token", "manage the tokens of a server", help_texts.TOKEN))
    _add_playground_options(
        commands.tool("playground", "see locks, faults and fencing at work", help_texts.PLAYGROUND)
    )


def _add_serve_options(parser: Parser) -> None:
    store = parser.add_mutually_exclusive_group()
    store.add_argument(
        "--store", metavar="URL", help="the store (default: LOCKFAST_URL, else a local file)"
    )
    store.add_argument("--store-file", metavar="FILE", help="a file that holds the store's URL")
    parser.add_argument(
        "--listen",
        action="append",
        metavar="PLACE",
        help="HOST:PORT, or the path of a Unix socket; may be repeated (default: 127.0.0.1:7601)",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="TOML: hosts, TLS, rights, quotas, JWT, audit log"
    )
    _add_state_directory(parser)
    parser.add_argument(
        "--node",
        metavar="DIR",
        help="also be a node of quorum+http://, with its data in DIR; the store is then a file "
        "there unless --store is given",
    )
    parser.add_argument(
        "--skew",
        type=types.seconds,
        metavar="S",
        help="with --node: how much clocks may differ (default: 0.5)",
    )
    parser.add_argument(
        "--silence",
        type=types.seconds,
        metavar="S",
        help="with --node: grant nothing for S if the data was lost; no TTL is longer "
        "(default: 60)",
    )
    parser.add_argument(
        "--drain",
        type=types.seconds,
        default=1.0,
        metavar="S",
        help="serve on for S after SIGTERM, so that load balancers notice (default: 1)",
    )
    parser.add_argument(
        "--insecure-dev",
        action="store_true",
        help="let everybody on this machine use every lock without a token",
    )


def _add_playground_options(parser: Parser) -> None:
    parser.add_argument(
        "--listen",
        default="127.0.0.1:7602",
        metavar="PLACE",
        help="HOST:PORT on this machine (default: %(default)s; port 0: any)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        choices=range(2, 9),
        default=4,
        metavar="N",
        help="how many workers there are, 2 to 8 (default: %(default)s)",
    )
    parser.add_argument("--open", action="store_true", help="open it in your browser")


def _add_token_options(parser: Parser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="print a new token", allow_abbrev=False)
    create.add_argument("principal", metavar="PRINCIPAL", help="whom it authenticates")
    create.add_argument(
        "--expires",
        type=types.seconds,
        metavar="S",
        help="how long it is valid (default: for ever)",
    )
    shown = actions.add_parser("list", help="list tokens, not their secrets", allow_abbrev=False)
    shown.add_argument("--json", action="store_true", help="print JSON")
    revoke = actions.add_parser("revoke", help="make a token invalid", allow_abbrev=False)
    revoke.add_argument("id", metavar="ID", help="as `lockfast token list` shows it")
    for action in (create, shown, revoke):
        _add_state_directory(action)
        action.add_argument("--audit-log", metavar="FILE", help="note the change there")


def _add_state_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state-dir",
        default=server_directory(),
        metavar="DIR",
        help="where the server keeps its tokens (default: %(default)s)",
    )


def _add_doctor_options(parser: Parser) -> None:
    parser.add_argument("where", nargs="?", metavar="URL", help="the store, instead of --url")
    parser.add_argument(
        "--ttl",
        type=types.ttl,
        metavar="S",
        help="the TTL that clients use (default: LOCKFAST_TTL, else 30s)",
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--repair",
        action="store_true",
        help="first repair damaged rows; intact locks stay held, tokens keep rising",
    )
    action.add_argument(
        "--dump", action="store_true", help="print everything stored as text, and check nothing"
    )
    action.add_argument(
        "--raise-epoch",
        action="store_true",
        help="after a restore from a backup (etcd, PostgreSQL, ZooKeeper): lift tokens above all "
        "given before",
    )


def _add_advise_ttl_options(parser: Parser) -> None:
    parser.add_argument(
        "histories",
        type=Path,
        nargs="*",
        metavar="FILE",
        help="histories that clients recorded (default: measure the store now)",
    )
    parser.add_argument(
        "--for",
        dest="measure_for",
        type=types.seconds,
        default=300.0,
        metavar="S",
        help="how long to measure (default: 5m)",
    )
    parser.add_argument(
        "--ttl",
        type=types.ttl,
        default=3.0,
        metavar="S",
        help="the TTL to measure with (default: 3s)",
    )
    parser.add_argument(
        "--candidate",
        dest="candidates",
        action="append",
        type=types.ttl,
        metavar="S",
        help="a TTL to judge; may be repeated (default: 1s to 10m)",
    )


def _add_simulate_options(parser: Parser) -> None:
    parser.add_argument("scenario", metavar="SCENARIO")
    parser.add_argument("--seed", type=int, metavar="N", help="(default: 1, or that of the file)")
    parser.add_argument("--no-guard", action="store_true", help="let every write through")
    drawing = parser.add_mutually_exclusive_group()
    drawing.add_argument(
        "--html", type=Path, metavar="FILE", help="where to draw it (default: SCENARIO-N.html)"
    )
    drawing.add_argument("--no-html", action="store_true", help="print the story only")


DAY_S: Final = 86400.0


def _add_run_options(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME")
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument(
        "--timeout",
        type=types.seconds,
        metavar="S",
        help="stop waiting after S (default: wait for ever)",
    )
    waiting.add_argument(
        "--no-wait",
        action="store_const",
        dest="timeout",
        const=0.0,
        help="do not wait; the same as --timeout 0",
    )
    parser.add_argument(
        "--ttl",
        type=types.ttl,
        metavar="S",
        help="how long the lock stays held if lockfast dies (default: LOCKFAST_TTL, else 30s)",
    )
    parser.add_argument(
        "--priority",
        type=types.priority,
        default=0,
        metavar="N",
        help="a head start in the queue of 10 s for each (default: 0)",
    )
    once = parser.add_argument_group("for the same cron entry on many hosts")
    once.add_argument(
        "--once",
        action="store_true",
        help="run CMD at most once per window over all hosts; exit 0 if it is skipped",
    )
    once.add_argument(
        "--at-least",
        type=types.seconds,
        metavar="S",
        help="the window: after a start nobody starts CMD again for S",
    )
    once.add_argument(
        "--at-most",
        type=types.seconds,
        metavar="S",
        help="stop a CMD that takes longer (default: 1d, or the window if that is longer)",
    )
    once.add_argument(
        "--wait",
        action="store_true",
        help="wait for a run under way elsewhere; exit 75 if it failed there",
    )
    parser.add_argument(
        "--hide-url",
        action="store_true",
        help="do not pass LOCKFAST_URL and LOCKFAST_URL_FILE on to CMD",
    )
    parser.add_argument(
        "--on-lost",
        choices=("term", "signal", "ignore"),
        default="term",
        help="when the lease is lost: end CMD and its process group by SIGTERM, then SIGKILL "
        "(term, the default); only send CMD a signal; or let it continue",
    )
    parser.add_argument(
        "--signal",
        type=types.signal_number,
        metavar="NAME",
        help="for --on-lost signal (default: TERM)",
    )
    parser.add_argument(
        "--grace",
        type=types.seconds,
        metavar="S",
        help="how long before the end of the lease CMD is signalled, and how long it then has "
        "until SIGKILL; at most half the ttl (default: 10s, or a third of a shorter ttl)",
    )


def _check_run(parser: Parser, arguments: argparse.Namespace) -> None:
    if arguments.once and arguments.at_least is None:
        parser.error("--once needs --at-least")
    if not arguments.once and (arguments.wait or arguments.at_least or arguments.at_most):
        parser.error("--at-least, --at-most and --wait need --once")
    if arguments.once and (arguments.timeout is not None or arguments.priority):
        parser.error("--once does not queue: --timeout, --no-wait and --priority have no meaning")
    if arguments.once and arguments.at_most is None:
        arguments.at_most = max(DAY_S, arguments.at_least)
    if arguments.once and arguments.at_most < arguments.at_least:
        parser.error("--at-most is shorter than --at-least")
    if arguments.signal is not None and arguments.on_lost != "signal":
        parser.error("--signal needs --on-lost signal")
    if arguments.grace is None:
        arguments.grace = min(10.0, arguments.ttl / 3)
    if arguments.grace > arguments.ttl / 2:
        # The next renewal is due after a third of the TTL. With a longer grace period the
        # first late renewal would stop the command although there is time to retry.
        parser.error(
            f"--grace {arguments.grace:g} is more than half of the ttl of {arguments.ttl:g} s, "
            f"so one late renewal would stop CMD; use --ttl {arguments.grace * 2:g}"
        )


def _checked(parser: Parser, make: Callable[[], T]) -> T:
    try:
        return make()
    except ValueError as error:
        parser.error(str(error))
