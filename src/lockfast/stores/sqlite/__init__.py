"""The embedded store: the lock table's rows in a SQLite database that many processes share.

sqlite:///absolute/path or sqlite://relative/path,
?driver=stdlib|apsw&death_watch=off&share=group

"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lockfast.errors import StoreMisconfiguredError
from lockfast.ports import Store
from lockfast.stores.diagnosis import Maintenance
from lockfast.stores.registry import Face, StoreUrl


class Address(NamedTuple):
    """A parsed URL."""

    path: Path
    driver: str
    group: bool


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    path, driver, group = parse(url)
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
