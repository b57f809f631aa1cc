"""A store that refuses the credentials is told apart from one that is down or misused: exit 77."""

from __future__ import annotations

import pytest

from lockfast.cli import main
from lockfast.cli.exit_codes import DENIED
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer


@pytest.mark.parametrize(
    "command", [["ls"], ["show", "a"], ["run", "a", "--", "true"], ["doctor"]], ids=" ".join
)
def test_refused_credentials_have_their_own_exit_code(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    with RedisServer(None, "--requirepass", "s3cret", port=port):
        monkeypatch.setenv("LOCKFAST_URL", f"redis://:guess@127.0.0.1:{port}")
        assert main(command) == DENIED
    said = capsys.readouterr().err
    assert "password" in said
    assert "guess" not in said
