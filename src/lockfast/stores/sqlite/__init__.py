"""The embedded store: the lock table's rows in a SQLite database that many processes share.

    sqlite:///absolute/path or sqlite://relative/path
    ?driver=stdlib|apsw&death_watch=off&share=group

**One step, one transaction.** A command runs `core.table` over the rows of the database inside
one write transaction. If the process is killed, or the transaction fails, the step has not
happened.

**A row is in at most three places** (`rows.py`): as an object in the *cache* of a process, as
text in the *hot row*, and as text in the table of *spilled* rows. They are asked in this order.

- The hot row (`hot.py`) is one row of the database. It has the counters, the rows that were
  written since the last spill, and the newest entries of the log. It fits one page, so most
  transactions write one page, and a lock that is taken and released leaves nothing behind.
- When it is full, its contents are moved ("spilled") to the tables `rows` and `log`
  (`spilled.py`), in the transaction of the step that found it full.
- Every step that writes raises the version in the hot row. A process reads the version first. If
  it is the one that the process itself wrote, its cache holds; if not, it loads the hot row and
  starts with an empty cache.
- The log of events (`log.py`) is written while somebody reads it, and for ten minutes after.

**The gate** (`gate.py`) is a file lock around every write transaction, checkpoint, open and
close. Before 3.51.3, SQLite can corrupt a write-ahead log if a commit overlaps the checkpoint of
another process; behind the gate nothing overlaps. It also passes on quicker than SQLite's busy
handler. No grant rests on it: SQLite's own lock, which BEGIN IMMEDIATE takes, serializes steps as
well. The wait for the gate is bounded, and the error names the process inside. Reading needs no
gate: a read transaction sees one instant.

**Presence** (`presence.py`): each process also holds SQLite's "in use" locks in a form that closing
another descriptor of the file does not drop, so that no process takes itself for the last one and
deletes the write-ahead log under the others.

**One connection per process** (`file.py`). SQLite's own locks are POSIX locks, which vanish when
any descriptor of the file is closed, so all clients of a process share one connection, one gate
and one mutex. No connection crosses a fork: it is closed before, and each side opens its own.

**What each fault does.**

    killed in a step          SQLite undoes the transaction; the kernel drops the gate
    killed while holding      a waiter sees the death through a pidfd and expels the session
    suspended in a step       others get StoreUnavailableError, which names the process
    crash of the last user    the next one to open the database runs quick_check first
    power cut, reboot         the boot id differs: all rows but counters and log are deleted; tokens
                              go on from the wall clock if the last transactions are lost
    database deleted          noticed within 20 ms: StoreError; leases end at their deadlines
    gate file deleted         noticed within 20 ms: the process opens the new one
    unreadable row            StoreError; `lockfast doctor` shows it, `lockfast reset` deletes it
    two paths to one database refused when it is opened: hard links, files mounted singly

**Wakes** (`wake_listener.py`) are loopback datagrams to the port in the session's row, sent after
the commit. They carry a secret from that row, so a process that can send one could also have read
the grant. Within a process a wake is a function call.

**Processes** (`processes.py`) are identified by boot id, pid namespace, pid and start time. The
keeper of a waiter watches the processes ahead of it; `try_acquire` checks once whether those in
its way live.

**Files** (`filesystem.py`, `stores/private_files.py`): owner and rights are checked as ssh checks
private keys. Namespaces are databases of their own, so they share neither locks nor the gate.

**asyncio** (`aio.py`): a whole transaction runs on one worker thread, one hop there and one back.

**Clock**: CLOCK_BOOTTIME, which counts time asleep and starts again with each boot.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lockfast.errors import StoreMisconfiguredError, UnsupportedError
from lockfast.ports import Store
from lockfast.runtimes.platform import has_file_locks
from lockfast.stores.diagnosis import Maintenance
from lockfast.stores.registry import Face, StoreUrl


class Address(NamedTuple):
    """A parsed URL."""

    path: Path
    driver: str
    group: bool


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    path, driver, group = parse(url)
    if not has_file_locks():
        raise UnsupportedError(
            url.label,
            "the embedded store needs the file locks of Linux or macOS",
            "use memory:// within one process, or a server: redis://, postgresql://, etcd://",
        )
    death_watch = url.flag("death_watch", death_watch)
    if face == "asyncio":
        from lockfast.stores.sqlite.aio import AsyncSqliteStore

        return AsyncSqliteStore(path, driver=driver, death_watch=death_watch, group=group)
    from lockfast.stores.sqlite.store import SqliteStore

    return SqliteStore(path, driver=driver, death_watch=death_watch, group=group)


def open_maintenance(url: StoreUrl) -> Maintenance:
    from lockfast.stores.sqlite.checkup import SqliteMaintenance

    return SqliteMaintenance(url.label, parse(url))


def parse(url: StoreUrl) -> Address:
    url.refuse_other_options("driver", "death_watch", "share")
    try:
        path = Path(url.location).expanduser()
    except RuntimeError as error:
        raise StoreMisconfiguredError(
            url.label, f"~ cannot be resolved ({error})", "write the path in full"
        ) from None
    if not path.name or "\x00" in url.location:
        raise StoreMisconfiguredError(url.label, "names no file", "write sqlite:///path/locks.db")
    if url.namespace:
        # A database of its own: namespaces then share neither locks nor the gate.
        path = path.with_name(f"{path.stem}@{url.namespace}{path.suffix}")
    share = url.options.get("share", "")
    if share not in ("", "group"):
        raise StoreMisconfiguredError(
            url.label, f"share={share!r} is unknown", "write share=group, or leave it out"
        )
    return Address(path, url.options.get("driver", "stdlib"), share == "group")
