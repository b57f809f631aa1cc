"""Redis 7 and Valkey word permission errors of scripts differently from Redis 6, so the error had
no advice. Seen with Valkey 9.1."""

from __future__ import annotations

import pytest

from lockfast.errors import StoreMisconfiguredError
from lockfast.stores.redis.errors import translate

MISSING_RIGHT = {
    "Redis 6": "ERR Error running script (call to f_6b1b): @user_script:14: @user_script: 14: The "
    "user executing the script can't run this command or subcommand",
    "Redis 7, Valkey": "ERR ACL failure in script: User locks has no permissions to run the 'hset' "
    "command script: on @user_script:14.",
    "outside a script": "NOPERM this user has no permissions to run the 'evalsha' command",
}
MISSING_COMMAND = {
    "Redis 6": "ERR Error running script (call to f_6b1b): @user_script:7: @user_script: 7: "
    "Unknown Redis command called from Lua script",
    "Redis 7": "ERR Unknown Redis command called from script script: 6b1b, on @user_script:7.",
    "outside a script": "ERR unknown command `EVALSHA`, with args beginning with: ",
}


@pytest.mark.parametrize("said_by", MISSING_RIGHT)
def test_a_missing_right_is_told_as_one(said_by: str) -> None:
    error = translate(MISSING_RIGHT[said_by], "redis://here")
    assert isinstance(error, StoreMisconfiguredError)
    assert "does not allow this user a command that is needed" in str(error)


@pytest.mark.parametrize("said_by", MISSING_COMMAND)
def test_a_missing_command_is_told_as_one(said_by: str) -> None:
    error = translate(MISSING_COMMAND[said_by], "redis://here")
    assert isinstance(error, StoreMisconfiguredError)
    assert "lacks a command that is needed" in str(error)
