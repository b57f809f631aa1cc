"""The store object of the blocking API, and the parts that both APIs share."""

from __future__ import annotations

from pathlib import Path

from lockfast.core.commands import Command, Reply
from lockfast.ports import Capabilities, Deliver, WakeListener, Wire
from lockfast.stores.sqlite import processes
from lockfast.stores.sqlite.file import ALL_INBOXES, SqliteFile, open_file
from lockfast.stores.sqlite.wake_listener import ALL_SESSIONS, SqliteWakeListener


class SqliteStore:
    """A client's access to a lock database."""

    listens_for_all = True

    def __init__(
        self,
        path: Path,
        *,
        driver: str = "stdlib",
        death_watch: bool = True,
        group: bool = False,
    ) -> None:
        self.capabilities = Capabilities(death_watch=bool(processes.identity()))
        self._path = path
        self._driver = driver
        self._death_watch = death_watch
        self._group = group
        self._file = open_file(path, driver, group=group)
        self.label = self._file.label

    def file(self) -> SqliteFile:
        """Return this process's handle of the database; after a fork, open it again."""
        if self._file.is_inherited:
            self._file = open_file(self._path, self._driver, group=self._group)
        return self._file

    def caller_wire(self) -> Wire:
        return SqliteWire(self)

    def keeper_wire(self) -> Wire:
        return SqliteWire(self)

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        file = self.file()
        if session:
            listener = SqliteWakeListener(session, self._death_watch, deliver, file.detach)
        else:
            # A server also wakes the sessions that it opened before it was restarted.
            file.attach(ALL_INBOXES, deliver)
            listener = SqliteWakeListener(ALL_SESSIONS, False, deliver, file.detach_all)
        file.attach(listener.inbox, deliver)
        return listener

    def close(self) -> None:
        if not self._file.is_inherited:
            self._file.close()


class SqliteWire:
    """Executes commands in the calling thread."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        return self._store.file().apply(command, timeout_ms)

    def close(self) -> None:
        """Nothing to close: the file belongs to the store."""
