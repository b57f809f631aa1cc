"""lockfast check on invalid or hostile files: one line and exit code 2."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lockfast.cli import main

ASK = '{"at":%s,"op":%s,"by":%s,"ask":"acquire","places":%s,"wait":true,"head_start":0}\n'


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\xff\xfe",
        b"no json\x1b[2J\n",
        b"[" * 100_000,
        b'{"at":' + b"9" * 5000 + b"}\n",
        b'{"at":1e999,"op":1}\n',
        b'{"at":true}\n',
        b"[]\nnull\n",
        (ASK % ("1", "[]", '"c"', "[]")).encode(),
        (ASK % ("1", "1", "{}", '[{"kind": "lock", "name": "a", "mode": "exclusive"}]')).encode(),
        (ASK % ("1", "1", '"c"', '[{"kind":"lock"}]')).encode(),
        (ASK % ("1", "1", '"c"', '[{"kind": "lock", "name": "a", "mode": "sideways"}]')).encode(),
        (ASK % ("1", "1", '"c"', '"lock\\u001b"')).encode(),
        b'{"at":1,"op":1,"got":"granted","token":-5}\n',
        b'{"at":1,"op":7,"got":"\\u202e"}\n',
    ],
)
def test_a_hostile_file_is_refused_in_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "history.jsonl"
    file.write_bytes(content)
    assert main(["check", str(file)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("lockfast: ")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    assert said.err.removesuffix("\n").isprintable()


def test_text_in_a_history_cannot_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two holders at once, with names that would clear the screen."""
    file = tmp_path / "history.jsonl"
    places = '[{"kind": "lock", "name": "a\\u202e", "mode": "exclusive"}]'
    lines = [ASK % (at, at, f'"c{at}\\u001b[2J"', places) for at in (1, 2)]
    lines += ['{"at":%s,"op":%s,"got":"granted","token":%s}\n' % (at + 9, at, at) for at in (1, 2)]  # noqa: UP031
    file.write_text("".join(lines))
    code = main(["check", str(file)])
    said = capsys.readouterr()
    assert (code, "FAILED" in said.out) == (1, True), said
    assert all(line.isprintable() for line in said.out.splitlines())


def test_colours_tell_locks_apart_on_the_page(tmp_path: Path) -> None:
    file, html = tmp_path / "history.jsonl", tmp_path / "history.html"
    lines = []
    for at, name in enumerate(("orders", "stock", "orders"), 1):
        places = f'[{{"kind": "lock", "name": "{name}", "mode": "exclusive"}}]'
        lines.append(ASK % (10 * at, at, f'"c{at}"', places))
        lines.append(f'{{"at":{10 * at + 1},"op":{at},"got":"granted","token":{at}}}\n')
    file.write_text("".join(lines))
    main(["check", str(file), "--html", str(html)])
    page = html.read_text(encoding="utf-8")
    bars = re.findall(r'<rect class="s(\d)"[^>]*><title>c\d: (\w+), token', page)
    assert len(bars) == 3
    assert {name: series for series, name in bars} == {"orders": "0", "stock": "1"}
    assert len(set(bars)) == 2
    for name in ("orders", "stock"):
        assert re.search(rf"</svg> \u2068{name}\u2069</li>", page)
