"""`lockfast token`: create, list and revoke the bearer tokens of a server."""

from __future__ import annotations

import argparse
import re
import time

from lockfast.cli import exit_codes
from lockfast.cli.formatting import safe_text, write_line
from lockfast.cli.json_output import write_json
from lockfast.cli.serve import check_packages


def token(arguments: argparse.Namespace) -> int:
    check_packages("lockfast token")
    from lockfast.server.audit import AuditLog
    from lockfast.server.running import token_file

    file = token_file(arguments.state_dir)
    audit = AuditLog(arguments.audit_log or "")
    if arguments.action == "create":
        if not re.fullmatch(r"[^\s\[\]:*]{1,128}", arguments.principal):
            raise exit_codes.CommandError(
                exit_codes.USAGE, "a principal has no spaces, brackets, colons or asterisks"
            )
        lifetime_s = None if arguments.expires is None else int(arguments.expires)
        write_line(file.create(arguments.principal, lifetime_s))
        audit.write("token created", principal=arguments.principal, expires_s=lifetime_s)
        return 0
    if arguments.action == "revoke":
        if not file.revoke(arguments.id):
            raise exit_codes.CommandError(1, f"there is no token {arguments.id}")
        audit.write("token revoked", id=arguments.id)
        return 0
    found = file.all()
    if arguments.json:
        shown = [{k: v for k, v in one._asdict().items() if k != "sha256"} for one in found]
        write_json(shown)
        return 0
    for one in found:
        expires = "never" if one.expires is None else _day(one.expires)
        if not one.is_live(time.time()):
            expires += " (expired)"
        write_line(
            f"{one.id}  {safe_text(one.principal)}  created {_day(one.created)}  expires {expires}"
        )
    return 0


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
