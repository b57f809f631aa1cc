"""A guard for an object in S3 or another store that obstore opens: replaced as a whole, never by
the holder of an older token.

The object begins with its fence, a line of 34 bytes: the newest token admitted (16 digits), the id
of the write (16 hexadecimal digits). The content follows. A write

1. reads the fence, and with it the version of the object (its ETag);
2. refuses an older token;
3. puts a new fence and content, on the condition that the version is unchanged (`If-Match`), or
   that there is still no object (`If-None-Match`);
4. begins again if the condition failed.

The token is in the body because S3 computes the ETag from the body alone. If it were in the
metadata, a body that returns to an earlier value would have its earlier ETag again, and the put of
a holder that was suspended between steps 1 and 3 would pass although newer tokens were admitted.
The id of the write makes every body unique; it also shows whether a put whose reply was lost was
carried out. A put is atomic, so a writer that dies leaves the old or the new object.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from lockfast.errors import StoreError, UnsupportedError
from lockfast.guards.admission import (
    Admission,
    FenceDamagedError,
    admitted,
    check_token,
    checked_result,
    judge,
    refuse_shared,
)
from lockfast.runtimes.threads import run

TOKEN_DIGITS: Final = 16
ID_DIGITS: Final = 16
FENCE_BYTES: Final = TOKEN_DIGITS + 1 + ID_DIGITS + 1
ATTEMPTS: Final = 20
"""Each failed one means that another writer has replaced the object."""

Change: TypeAlias = Callable[[bytes | None], bytes]
"""Makes the new content from the present one, which is None if there is no object yet."""

_UNCONDITIONAL: Final = frozenset({"HTTPStore", "LocalStore"})

_NOT_CREATED: Final = frozenset({"AlreadyExistsError", "PreconditionError"})
_NOT_REPLACED: Final = frozenset({"PreconditionError", "NotFoundError", "FileNotFoundError"})
"""What a conditional put raises if its condition failed; by name, so that obstore need not be
imported. Not found: somebody has deleted the object."""


class _Found(NamedTuple):
    """The object as it was read; without an object, version is None."""

    token: int
    write_id: str
    content: bytes
    """Empty if only the fence was read."""
    version: dict[str, str] | None


_NOTHING: Final = _Found(0, "", b"", None)


class _Objects(Protocol):
    """The requests that a guard needs; in the blocking form these never suspend."""

    async def get(self, path: str, options: dict[str, Any] | None) -> tuple[bytes, Any]: ...

    async def put(self, path: str, body: bytes, mode: Any) -> None: ...


class _Blocking:
    def __init__(self, store: Any) -> None:
        self._store = store

    async def get(self, path: str, options: dict[str, Any] | None) -> tuple[bytes, Any]:
        result = self._store.get(path, options=options)
        return bytes(result.bytes()), result.meta

    async def put(self, path: str, body: bytes, mode: Any) -> None:
        self._store.put(path, body, mode=mode, use_multipart=False)


class _Awaited:
    def __init__(self, store: Any) -> None:
        self._store = store

    async def get(self, path: str, options: dict[str, Any] | None) -> tuple[bytes, Any]:
        result = await self._store.get_async(path, options=options)
        return bytes(await result.bytes_async()), result.meta

    async def put(self, path: str, body: bytes, mode: Any) -> None:
        await self._store.put_async(path, body, mode=mode, use_multipart=False)


class _Fenced:
    """The procedures of both guards, written once."""

    def __init__(self, objects: _Objects, store: object, path: str) -> None:
        if type(store).__name__ in _UNCONDITIONAL:
            raise _not_conditional(store)
        self._objects = objects
        self._store = store
        self._path = path

    async def read(self, *, whole: bool = True) -> _Found:
        options = None if whole else {"range": (0, FENCE_BYTES)}
        try:
            body, meta = await self._objects.get(self._path, options)
        except FileNotFoundError:
            return _NOTHING
        except Exception:
            # Stores refuse a range of an empty object, each with an error of its own.
            if whole:
                raise
            return await self.read()
        fence, content = body[:FENCE_BYTES], body[FENCE_BYTES:]
        token, space, write_id = fence[:-1].partition(b" ")
        if not (
            len(fence) == FENCE_BYTES
            and fence.endswith(b"\n")
            and (len(token), space, len(write_id)) == (TOKEN_DIGITS, b" ", ID_DIGITS)
            and token.isdigit()
        ):
            raise FenceDamagedError(
                f"object {self._path!r}",
                fence,
                f"a fence of {FENCE_BYTES} bytes",
                "it was not written by a guard: choose another path, or delete it if no holder is "
                "at work",
            )
        version = {key: meta[key] for key in ("e_tag", "version") if meta.get(key) is not None}
        return _Found(int(token), write_id.decode("ascii"), content, version)

    async def replace(self, token: int, change: Change, *, whole: bool, once: bool) -> bytes:
        """Put what `change` makes of the content, unless the token is stale; return that."""
        check_token(token)
        admission = Admission(self._path, token, once, (), (), "object")
        for _ in range(ATTEMPTS):
            found = await self.read(whole=whole)
            judge(admission, found.token)
            content = checked_result(change(None if found.version is None else found.content))
            if await self._put(token, content, found):
                admitted(admission)
                return content
        raise StoreError(
            "the object store",
            f"{self._path!r} was replaced {ATTEMPTS} times while token {token} was admitted",
            "retry",
        )

    async def _put(self, token: int, content: bytes, found: _Found) -> bool:
        """Replace what was found. Return False if it is there no more."""
        write_id = secrets.token_hex(ID_DIGITS // 2)
        body = b"%0*d %s\n%s" % (TOKEN_DIGITS, token, write_id.encode("ascii"), content)
        mode: Any = "create" if found.version is None else found.version
        conflicts = _NOT_CREATED if found.version is None else _NOT_REPLACED
        try:
            await self._objects.put(self._path, body, mode)
        except NotImplementedError as error:
            raise _not_conditional(self._store) from error
        except Exception as error:
            # The client repeats a put whose reply was lost, and the condition of the second fails
            # because of the first.
            if (await self.read(whole=False)).write_id == write_id:
                return True
            if type(error).__name__ not in conflicts:
                raise
            return False
        return True


def _not_conditional(store: object) -> UnsupportedError:
    return UnsupportedError(
        f"ObjectGuard on a {type(store).__name__}",
        "it has no put on the condition of an unchanged version",
        "use an S3, GCS or Azure store, or FileGuard for local files",
    )


class ObjectGuard:
    """An object that holders of stale tokens cannot overwrite.

    `store` is a store of obstore, such as `obstore.store.S3Store`; its server must support
    conditional puts. The content begins at byte 34, after the fence: read it with `read_bytes`, or
    with a range request from there. Every writer must use the guard, and nobody may delete the
    object: with it goes the newest token. A put is one request with the whole content.
    """

    def __init__(self, store: Any, path: str) -> None:
        self._fenced = _Fenced(_Blocking(store), store, path)

    def read_bytes(self) -> bytes | None:
        """Return the content, or None if nothing was written yet."""
        found = run(self._fenced.read())
        return None if found.version is None else found.content

    def write_bytes(self, data: bytes, token: int, *, once: bool = False) -> None:
        """Replace the content, or raise StaleTokenError.

        Passes unless a newer token was admitted before. With `once`, a token passes a single time.
        Errors of the object store reach the caller unchanged; after one of them, the put may or
        may not have been carried out.
        """
        run(self._fenced.replace(token, lambda _: data, whole=False, once=once))

    def execute(
        self,
        resource: str,
        token: int,
        operation: Change,
        *,
        shared: bool = False,
        once: bool = False,
    ) -> bytes:
        """Replace the content by what `operation` makes of it, and return that.

        If another writer comes in between, the new content is read and `operation` is called
        again. `resource` is not used: each object has a fence of its own.
        """
        refuse_shared(shared, "replacing an object")
        return run(self._fenced.replace(token, operation, whole=True, once=once))

    def floor(self) -> int:
        """Return the lowest token that would be admitted now; 0 if any token would."""
        return run(self._fenced.read(whole=False)).token


class AsyncObjectGuard:
    """ObjectGuard for asyncio."""

    def __init__(self, store: Any, path: str) -> None:
        self._fenced = _Fenced(_Awaited(store), store, path)

    async def read_bytes(self) -> bytes | None:
        """Return the content, or None if nothing was written yet."""
        found = await self._fenced.read()
        return None if found.version is None else found.content

    async def write_bytes(self, data: bytes, token: int, *, once: bool = False) -> None:
        """Replace the content, or raise StaleTokenError."""
        await self._fenced.replace(token, lambda _: data, whole=False, once=once)

    async def execute(
        self,
        resource: str,
        token: int,
        operation: Change,
        *,
        shared: bool = False,
        once: bool = False,
    ) -> bytes:
        """Replace the content by what `operation` makes of it, and return that."""
        refuse_shared(shared, "replacing an object")
        return await self._fenced.replace(token, operation, whole=True, once=once)

    async def floor(self) -> int:
        """Return the lowest token that would be admitted now; 0 if any token would."""
        return (await self._fenced.read(whole=False)).token
