"""Commands of the server without its packages: one line that names the extra, no traceback."""

from __future__ import annotations

import pytest

from lockfast.cli import main, serve


@pytest.mark.parametrize("command", [["serve"], ["token", "list"], ["playground"]])
def test_the_extra_is_named(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "NEEDED", ("a_package_that_is_not_installed",))
    assert main(command) == 2
    assert capsys.readouterr().err.endswith("pip install 'lockfast[server]'\n")
