"""One connection to the server: statements out and rows in, by a deadline.

This uses libpq (psycopg's `pq` module) directly and always in pipeline mode: all statements of an
exchange are sent in one flight. Without an explicit BEGIN they are one transaction, which the
server commits when it reaches the end of the flight.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from psycopg import OperationalError, pq
from psycopg.conninfo import make_conninfo

from lockfast.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from lockfast.runtimes import platform
from lockfast.stores.passwords import plain
from lockfast.stores.postgresql.address import Address
from lockfast.stores.postgresql.errors import refused_connection, translate
from lockfast.stores.stream import IDLE_S, SPIN_S, left_s

Parameter = str | int | bool | None
Statement = tuple[str, Sequence[Parameter]]
Result = list[tuple[str | None, ...]]

LOCK_TIMEOUT_MS: Final = 5000
"""Our locks are held for one short transaction; a longer wait means that a transaction is stuck."""
CLIENT_CHECK_MS: Final = 2000
"""How soon the server notices that the client of a waiting statement has disconnected."""
_TUNE: Final = (
    f"SET lock_timeout = {LOCK_TIMEOUT_MS}",
    f"SET client_connection_check_interval = {CLIENT_CHECK_MS}",
)
BEGIN: Final[Statement] = ("BEGIN", ())
COMMIT: Final[Statement] = ("COMMIT", ())
ROLLBACK: Final[Statement] = ("ROLLBACK", ())


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _encoded(value: Parameter) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return b"t" if value else b"f"
    return str(value).encode()


class Connection:
    """A connection for one thread at a time. Close it after any error not sent by the server."""

    def __init__(self, address: Address, until_s: float) -> None:
        self.address = address
        self._input = platform.poll()
        self._answers_fast = False
        self._used_s = monotonic()
        self.exchanges = 0
        """How many flights were sent: each is one round trip."""
        parameters = {**dict(address.parameters), "client_encoding": "UTF8"}
        if address.password:
            parameters["password"] = plain(address.password, address.label)
        conninfo = make_conninfo("", **parameters)
        self._pg = self._connect(conninfo.encode(), until_s)
        self._prepared: dict[str, bytes] = {}
        self.is_pooled = True
        """A pooler is in between: no state outlives a transaction."""
        try:
            self._pg.nonblocking = 1
            self._pg.enter_pipeline_mode()
            # libpq forgets it as soon as the connection is lost.
            self._fd = self._pg.socket
            self._input.register(self._fd, platform.POLLIN)
            ((pid, encoding, oldest),) = self.run(
                "SELECT pg_backend_pid(), current_setting('server_encoding'),"
                " current_setting('server_version_num')", until_s=until_s,
            )  # fmt: skip
            self.is_pooled = str(pid) != str(self._pg.backend_pid)
            self.encoding, self.version = str(encoding), int(oldest or 0)
            if not self.is_pooled:
                self.exchange([(sql, ()) for sql in _TUNE], until_s)
        except BaseException:
            self.close()
            raise

    def _connect(self, conninfo: bytes, until_s: float) -> pq.abc.PGconn:
        label = self.address.label
        connection = pq.PGconn.connect_start(conninfo)
        try:
            while True:
                status = connection.connect_poll()
                if status == pq.PollingStatus.OK:
                    return connection
                if connection.status == pq.ConnStatus.BAD or status == pq.PollingStatus.FAILED:
                    raise refused_connection(connection.get_error_message(), label)
                wanted = platform.POLLIN if status == pq.PollingStatus.READING else platform.POLLOUT
                waiting = platform.poll()
                waiting.register(connection.socket, wanted)
                waiting.poll(left_s(until_s) * 1000)
        except TimeoutError:
            connection.finish()
            raise StoreUnavailableError(label, "did not accept a connection in time") from None
        except BaseException:
            connection.finish()
            raise

    # ── statements ───────────────────────────────────────────────────────────────────

    def run(self, sql: str, *values: Parameter, until_s: float) -> Result:
        """Run one statement, in its own transaction unless one is open."""
        return self.exchange([(sql, values)], until_s)[0]

    def exchange(self, statements: Sequence[Statement], until_s: float) -> list[Result]:
        """Send statements in one flight and return the rows of each.

        Raises OutcomeUnknownError if the answer did not arrive; an error that the server returned
        means that nothing was executed.
        """
        self.exchanges += 1
        sent = False
        try:
            asked = self._send(statements)
            while self._pg.flush():
                self._wait(until_s, platform.POLLIN | platform.POLLOUT)
                self._pg.consume_input()
            sent = True
            results, refusal = self._receive(statements, asked, until_s)
        except (OperationalError, OSError) as error:
            raise lost_connection(statements, sent, _words(error), self.address.label) from error
        if refusal is not None:
            raise refusal
        return results

    def _send(self, statements: Sequence[Statement]) -> list[bool]:
        """Queue a flight; return for each expected answer whether it is that of a statement."""
        asked = []
        for sql, values in statements:
            encoded = [_encoded(value) for value in values]
            name = self._prepared.get(sql)
            if name is None and values and not self.is_pooled:
                name = self._prepared[sql] = f"lockfast_{len(self._prepared)}".encode()
                self._pg.send_prepare(name, sql.encode())
                asked.append(False)
            if name is not None:
                self._pg.send_query_prepared(name, encoded)
            else:
                self._pg.send_query_params(sql.encode(), encoded)
            asked.append(True)
        self._pg.pipeline_sync()
        return asked

    def _receive(
        self, statements: Sequence[Statement], asked: Sequence[bool], until_s: float
    ) -> tuple[list[Result], StoreError | None]:
        """Read to the end of the flight: only then is the transaction committed."""
        results: list[Result] = []
        error: StoreError | None = None
        for is_statement in (*asked, None):
            while True:
                while self._pg.is_busy():
                    self._wait_for_input(until_s)
                result = self._pg.get_result()
                if result is None:
                    continue  # the end of one statement's results
                break
            if result.status == pq.ExecStatus.FATAL_ERROR:
                code = result.error_field(pq.DiagnosticField.SQLSTATE)
                if code is None:
                    raise OSError(result.get_error_message())
                message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
                answered = statements[: len(results)]
                words = message.decode(errors="replace")
                error = error or refusal(answered, code.decode(), words, self.address.label)
            elif is_statement and result.status == pq.ExecStatus.TUPLES_OK:
                results.append(_rows_of(result))
            elif is_statement:
                results.append([])
        self._used_s = monotonic()
        return results, error

    # ── waiting ──────────────────────────────────────────────────────────────────────

    def _wait_for_input(self, until_s: float) -> None:
        """Wait until data has arrived; spin first if the server answers fast."""
        began_s = monotonic()
        if self._answers_fast:
            while not self._input.poll(0) and monotonic() < began_s + SPIN_S:
                platform.yield_cpu()
        while not self._input.poll(left_s(until_s) * 1000):
            pass
        self._answers_fast = monotonic() - began_s < SPIN_S
        self._pg.consume_input()

    def _wait(self, until_s: float, events: int) -> None:
        waiting = platform.poll()
        waiting.register(self._fd, events)
        waiting.poll(left_s(until_s) * 1000)

    def is_usable(self) -> bool:
        """Return whether a request may be sent: just used, or no unexpected data has arrived."""
        return monotonic() - self._used_s < IDLE_S or not self._input.poll(0)

    def fileno(self) -> int:
        return self._fd

    def notifications(self) -> list[str]:
        """Return the payloads of received notifications; raises OSError if closed."""
        try:
            self._pg.consume_input()
        except OperationalError as error:
            raise OSError(_words(error)) from error
        found = []
        while (notification := self._pg.notifies()) is not None:
            found.append(notification.extra.decode(errors="replace"))
        return found

    def close(self) -> None:
        self._pg.finish()


def refusal(answered: Sequence[Statement], code: str, message: str, label: str) -> StoreError:
    """Return the error for a flight that the server refused after answering some statements."""
    error = translate(code, message, label)
    if COMMIT in answered and isinstance(error, StoreUnavailableError):
        # The backend was terminated between its commit and the end of the flight.
        return OutcomeUnknownError(label, error.what, "try again")
    return error


def lost_connection(
    statements: Sequence[Statement], sent: bool, words: str, label: str
) -> StoreError:
    """Return the error for a flight without an answer."""
    if not sent and COMMIT not in statements:
        # Without the end of the flight, the server commits nothing.
        return StoreUnavailableError(label, f"lost the connection ({words})", "try again")
    return OutcomeUnknownError(label, f"did not answer ({words})", "try again")


def _rows_of(result: pq.abc.PGresult) -> Result:
    columns = range(result.nfields)
    return [
        tuple(
            value if value is None else value.decode()
            for value in (result.get_value(row, column) for column in columns)
        )
        for row in range(result.ntuples)
    ]


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
