"""sqlite:///absolute/path or sqlite://relative/path, ?driver=stdlib|apsw&death_watch=off."""

from __future__ import annotations

from pathlib import Path

from lockfast.errors import StoreMisconfiguredError
from lockfast.ports import Store
from lockfast.stores.registry import Face, StoreUrl


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    url.refuse_other_options("driver", "death_watch")
    try:
        path = Path(url.location).expanduser()
    except RuntimeError as error:
        raise StoreMisconfiguredError(url.label, f"~ leads nowhere ({error})") from None
    if not path.name or "\x00" in url.location:
        raise StoreMisconfiguredError(url.label, "names no file", "write sqlite:///path/locks.db")
    if url.namespace:
        # A file of its own: namespaces then share neither locks nor the gate.
        path = path.with_name(f"{path.stem}@{url.namespace}{path.suffix}")
    driver = url.options.get("driver", "stdlib")
    death_watch = url.flag("death_watch", death_watch)
    if face == "asyncio":
        from lockfast.stores.sqlite.aio import AsyncSqliteStore

        return AsyncSqliteStore(path, driver=driver, death_watch=death_watch)
    from lockfast.stores.sqlite import SqliteStore

    return SqliteStore(path, driver=driver, death_watch=death_watch)
