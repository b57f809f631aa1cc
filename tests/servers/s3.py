"""An S3 server for tests: moto's, in its own process, one request at a time.

moto answers conditional puts as S3 does (`If-Match`, `If-None-Match`: 412), and its ETag is the MD5
of the body, like S3's. It does not lock between comparing and writing, so a server with threads
could admit two conditional puts. Served one after another they are atomic, as S3 promises.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any, Self

from tests.cli.processes import ROOT

BUCKET = "lockfast"


class S3Server:
    """A server with one bucket; it ends with the block, or with this process."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.s3"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("PUT", f"/{BUCKET}", b"")
        assert connection.getresponse().status == 200
        connection.close()
        return self

    def store(self, port: int | None = None) -> Any:
        """Return an obstore store on the bucket; `port` is that of a proxy."""
        from obstore.store import S3Store

        return S3Store(
            BUCKET,
            endpoint=f"http://127.0.0.1:{port or self.port}",
            access_key_id="test",
            secret_access_key="test",
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.communicate(timeout=30)


def serve() -> None:
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, request_handler=MotoRequestHandler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":

    def end_with_parent() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    serve()
