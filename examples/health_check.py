"""Fail at the start if the store cannot be used, and answer health checks."""

from __future__ import annotations

import tempfile

import lockfast


def main() -> None:
    try:
        lockfast.connect("redis://127.0.0.1:1", check=True, connect_timeout=0.1)
    except lockfast.StoreUnavailableError as error:
        print("refused at the start:", error.store)
    with tempfile.NamedTemporaryFile("w") as secret:
        # The file is read for each new connection, so the password may be rotated.
        client = lockfast.connect(f"redis://locks@127.0.0.1:1?password_file={secret.name}")
        print("shown without secrets:", "password_file=***" in client.url)
        client.close()
    with lockfast.connect("memory://", check=True) as client:
        print("healthy:", client.ping() < 5)


if __name__ == "__main__":
    main()
