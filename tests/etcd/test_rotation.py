"""A password that is changed while a client holds a lease."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import lockfast
from tests.servers.etcd import EtcdCluster
from tests.servers.rotation import holds_through_rotation, holds_through_rotation_of_a_file


@pytest.fixture(scope="module")
def strict() -> Iterator[EtcdCluster]:
    """A node with users: root, and one whose password changes."""
    with EtcdCluster(1) as node:
        node.call("/v3/auth/role/add", {"name": "root"})
        for name in ("root", "rotating"):
            node.call("/v3/auth/user/add", {"name": name, "password": "first"})
            node.call("/v3/auth/user/grant", {"user": name, "role": "root"})
        node.call("/v3/auth/enable", {})
        yield node


def change(node: EtcdCluster, password: str) -> None:
    """Change the password. etcd forgets the tokens of that user."""
    with httpx.Client(base_url=f"http://127.0.0.1:{node.members[0].port}", timeout=10) as http:
        root = {"name": "root", "password": "first"}
        token: Any = http.post("/v3/auth/authenticate", json=root).json()["token"]
        body = {"name": "rotating", "password": password}
        done = http.post("/v3/auth/user/changepw", json=body, headers={"authorization": token})
        done.raise_for_status()


@pytest.fixture
def url(strict: EtcdCluster) -> str:
    change(strict, "first")
    return strict.url("rotation").replace("etcd://", "etcd://rotating@")


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
def test_a_lease_survives_a_new_password(strict: EtcdCluster, url: str, late: bool) -> None:
    holds_through_rotation(url, ["first", "second"], lambda: change(strict, "second"), late=late)


def test_a_lease_survives_a_new_password_in_a_file(
    strict: EtcdCluster, url: str, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    holds_through_rotation_of_a_file(url, file, lambda: change(strict, "second"))


def test_the_old_password_is_refused(strict: EtcdCluster, url: str) -> None:
    """Otherwise the tests above would prove nothing."""
    change(strict, "second")
    with pytest.raises(lockfast.StoreMisconfiguredError, match="password"):
        lockfast.connect(url, password=lambda: "first", check=True)
