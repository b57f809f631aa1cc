"""doctor and reset: the CLI asks the store, whatever its kind, and confirms before it deletes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import lockfast
from lockfast.cli import main
from lockfast.stores import registry
from lockfast.stores.diagnosis import Diagnosis, Maintenance
from lockfast.stores.registry import StoreUrl
from tests.cli.processes import LOCKFAST, Cli
from tests.cli.terminals import CTRL_C, Terminal, open_terminal, start_job

calls: list[str] = []


class Damaged(Maintenance):
    """A store with damage that a repair removes."""

    broken = True

    def examine(self) -> Iterator[Diagnosis]:
        calls.append("examine")
        yield Diagnosis("server", "evil\x1b[2J 1.0")
        if Damaged.broken:
            yield Diagnosis("rows", "2 damaged", "bad", "run lockfast doctor --repair")

    def repair(self) -> Iterator[Diagnosis]:
        calls.append("repair")
        Damaged.broken = False
        yield Diagnosis("rows", "2 rewritten", "note")

    def reset(self) -> Iterator[Diagnosis]:
        calls.append("reset")
        yield Diagnosis("sessions", "3 ended")

    def dump(self) -> Iterator[str]:
        yield "key\tval\x1bue"


def open_maintenance(url: StoreUrl) -> Maintenance:
    calls.append(f"open {url.namespace or 'default'}")
    return Damaged(url.label)


@pytest.fixture(autouse=True)
def damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    calls.clear()
    Damaged.broken = True
    monkeypatch.setitem(registry._BUILT_IN, "damaged", f"{__name__}:open_store")


def test_damage_gives_2_and_a_repair_mends_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "damaged://x"]) == 2
    said = capsys.readouterr()
    assert "BAD   rows" in said.out or "BAD  rows" in said.out
    assert said.err == "lockfast: damaged://x: rows: 2 damaged; run lockfast doctor --repair\n"
    assert main(["doctor", "--repair", "damaged://x"]) == 0
    assert calls == ["open default", "examine", "open default", "repair", "examine"]
    assert "2 rewritten" in capsys.readouterr().out


def test_what_a_server_says_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--repair", "damaged://x"])
    main(["doctor", "--dump", "damaged://x"])
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "key\tval\\x1bue\n" in said


def test_findings_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "damaged://x", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert [each["verdict"] for each in found] == ["good", "bad"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["doctor", "memory://"],
        ["doctor", "--repair", "memory://"],
        ["doctor", "--dump", "memory://"],
        ["doctor", "--raise-epoch", "memory://"],
        ["reset", "x", "--url", "memory://"],
    ],
)
def test_a_store_that_does_not_offer_it_says_so(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes before the confirmation."""
    monkeypatch.setitem(registry._BUILT_IN, "memory", "tests.cli.processes:none")
    assert main(arguments) == 2
    assert "is not available for this kind of store" in capsys.readouterr().err


def test_a_reset_without_a_terminal_needs_yes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert main(["reset", "staging", "--url", "damaged://x"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert main(["reset", "staging", "--url", "damaged://x", "--yes"]) == 0
    assert calls == ["open staging", "open staging", "reset"]


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with open_terminal() as terminal:
        yield terminal


@pytest.mark.parametrize(("answer", "code"), [(b"default\n", 0), (b"y\n", 1), (b"\n", 1)])
def test_a_reset_asks_for_the_namespace_and_tokens_keep_rising(
    cli: Cli, terminal: Terminal, answer: bytes, code: int
) -> None:
    with lockfast.connect(cli.url) as client:
        lease = client.lock("a").acquire()
        start_job(cli, terminal, *LOCKFAST, "reset", "default")
        terminal.prompt("Type 'default' to go ahead: ")
        terminal.type(answer)
        while (line := terminal.line()) != f"[exit {code}]":
            assert not line.startswith("[exit")
        with lockfast.connect(cli.url) as other:
            taken = other.lock("a").try_acquire()
            assert (taken is not None) == (code == 0)
            if taken is not None:
                assert taken.token > lease.token
                taken.release()


def test_ctrl_c_at_the_question_resets_nothing(cli: Cli, terminal: Terminal) -> None:
    with lockfast.connect(cli.url) as client, client.lock("a") as lease:
        start_job(cli, terminal, *LOCKFAST, "reset", "default")
        terminal.prompt("Type 'default' to go ahead: ")
        terminal.type(CTRL_C)
        assert terminal.line() == "[exit 130]"
        lease.check()
        assert client.inspect("a").holders


def test_doctor_of_a_lock_file(cli: Cli) -> None:
    cli.hold("orders/42", "--owner", "alice")
    assert cli.run("doctor", cli.url).returncode == 0
    dumped = cli.run("doctor", "--dump", cli.url)
    assert dumped.returncode == 0
    assert "orders/42" in dumped.stdout
    assert "alice" in dumped.stdout


def test_a_lock_server_refers_to_its_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "http://127.0.0.1:1"]) == 2
    assert "with the URL of the server's store" in capsys.readouterr().err
