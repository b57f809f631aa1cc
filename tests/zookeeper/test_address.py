"""`zookeeper://` URLs: what they mean, which are refused, and that kazoo connects with them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

import lockfast
from lockfast.errors import StoreMisconfiguredError, StoreUnavailableError
from lockfast.stores.http.members import Member
from lockfast.stores.registry import parse_url
from lockfast.stores.zookeeper.address import (
    ALL_PERMISSIONS,
    CREATOR,
    OPEN,
    Address,
    Permission,
    parse,
)
from lockfast.stores.zookeeper.handler import DirectHandler
from tests.zookeeper.access import PASSWORD, Guarded, guarded_server

WAIT_S = 30.0


def address(url: str) -> Address:
    return parse(parse_url(url))


def test_hosts_chroot_and_namespace() -> None:
    found = address("zookeeper://a,b:2182,[::1]:2183/apps/locks?namespace=blue")
    assert found.members == (Member("a", 2181), Member("b", 2182), Member("::1", 2183))
    assert found.hosts == "a:2181,b:2182,[::1]:2183"
    assert found.root == "/apps/locks/lockfast/blue"
    assert found.acl == OPEN
    assert found.tls is None


@pytest.mark.parametrize("url", ["zk://a", "zookeeper://a/", "zk://a:2181?namespace=default"])
def test_the_default_root(url: str) -> None:
    assert address(url).root == "/lockfast/default"


def test_a_user_makes_nodes_that_only_this_user_may_touch() -> None:
    found = address("zookeeper://bob:s3%3Acret@a/apps")
    assert (found.username, found.password) == ("bob", "s3:cret")
    assert found.acl == CREATOR
    assert address("zookeeper://bob:s3cret@a?acl=open").acl == OPEN
    listed = address("zookeeper://bob:s3cret@a?acl=auth::rwcda,ip:10.0.0.0/8:r,digest:x:h%3D:rw")
    assert listed.acl == (
        Permission("auth", "", ALL_PERMISSIONS),
        Permission("ip", "10.0.0.0/8", 1),
        Permission("digest", "x:h=", 3),
    )


def test_no_secret_is_shown() -> None:
    url = parse_url("zookeeper://bob:s3cret@a?acl=digest:bob:aGFzaA%3D%3D:rwcda")
    found = parse(url)
    for shown in (repr(found), str(found), found.label, repr(url)):
        assert "s3cret" not in shown
        assert "aGFz" not in shown


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("zookeeper://a:0", "names no server"),
        ("zookeeper://a:2181:5", "names no server"),
        ("zookeeper://a b", "names no server"),
        ("zookeeper://a//b", "no path"),
        ("zookeeper://a/b/../c", "no path"),
        ("zookeeper://a/b/.", "no path"),
        ("zookeeper://a/zookeeper/quota", "no path"),
        ("zookeeper://a/b%C2%85", "control character|no path"),
        ("zookeeper://a/" + "b" * 600, "more than 512 bytes"),
        ("zookeeper://bob@a", "no password"),
        ("zookeeper://:s3cret@a", "no user"),
        ("zookeeper://a?sasl=on", "no user"),
        ("zookeeper://a?sasl=perhaps", "neither on nor off"),
        ("zookeeper://a?acl=creator", "without a user"),
        ("zookeeper://a?acl=everybody", "cannot be read"),
        ("zookeeper://a?acl=world:anyone:x", "cannot be read"),
        ("zookeeper://a?ca=/nowhere", "requires TLS"),
        ("zookeepers://a?ca=/nowhere", "cannot load a certificate"),
        ("zookeeper://a?ttl=5", "no option"),
    ],
)
def test_a_malformed_url_is_refused(url: str, said: str) -> None:
    with pytest.raises(StoreMisconfiguredError, match=said) as refused:
        address(url)
    assert "s3cret" not in str(refused.value)


# ── kazoo gets in with what the URL says ─────────────────────────────────────────────────


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_server(tmp_path_factory.mktemp("access")) as started:
        yield started


@contextmanager
def connected(url: str) -> Iterator[KazooClient]:
    there = address(url)
    client = KazooClient(timeout=5.0, handler=DirectHandler(there), **there.client_options())
    try:
        client.start(timeout=WAIT_S)
        yield client
    finally:
        client.stop()
        client.close()


def test_digest_and_a_password_from_a_file(guarded: Guarded) -> None:
    hosts = guarded.ensemble.hosts()
    with connected(f"zk://bob@{hosts}?password_file={guarded.password_file}") as bob:
        bob.create("/of-bob", b"1")
        ((entry,), _) = bob.get_acls("/of-bob")
        assert (entry.id.scheme, entry.id.id.partition(":")[0]) == ("digest", "bob")
        with connected(f"zk://eve:guess@{hosts}") as eve, pytest.raises(NoAuthError):
            eve.get("/of-bob")
        with connected(f"zk://bob:{PASSWORD}@{hosts}") as again:
            assert again.get("/of-bob")[0] == b"1"


def test_sasl(guarded: Guarded) -> None:
    hosts = guarded.ensemble.hosts()
    with connected(f"zk://bob:{PASSWORD}@{hosts}?sasl=on") as bob:
        bob.create("/of-bob-by-sasl", b"1")
        ((entry,), _) = bob.get_acls("/of-bob-by-sasl")
        assert (entry.id.scheme, entry.id.id) == ("sasl", "bob")
    with connected(f"zk://{hosts}") as anyone, pytest.raises(NoAuthError):
        anyone.get("/of-bob-by-sasl")


def test_tls_with_a_client_certificate(guarded: Guarded) -> None:
    here = f"zks://127.0.0.1:{guarded.tls_port}"
    with connected(f"{here}?ca={guarded.ca}&cert={guarded.cert}") as client:
        assert client.exists("/zookeeper") is not None


@pytest.mark.parametrize(("option", "checked"), [("", True), ("?verify=off", False)])
def test_certificates_and_host_names_are_checked_unless_that_is_turned_off(
    option: str, checked: bool
) -> None:
    tls = address(f"zookeepers://a{option}").tls
    assert tls is not None
    assert (tls.verify_mode is ssl.CERT_REQUIRED, tls.check_hostname) == (checked, checked)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ("?ca={other}&cert={cert}", StoreMisconfiguredError, "certificate is not accepted"),
        ("?ca={ca}", StoreUnavailableError, "cannot be reached"),
    ],
)
def test_a_refused_certificate_is_named(
    guarded: Guarded, tmp_path: Path, options: str, error: type[Exception], says: str
) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    url = f"zks://127.0.0.1:{guarded.tls_port}" + options.format(
        other=other, cert=guarded.cert, ca=guarded.ca
    )
    with lockfast.connect(url, connect_timeout=3) as client, pytest.raises(error, match=says):
        client.lock("a").acquire(timeout=3)


def test_a_wrong_password_is_refused_at_once(guarded: Guarded) -> None:
    url = f"zk://bob:guess@{guarded.ensemble.hosts()}?sasl=on"
    with (
        lockfast.connect(url, connect_timeout=WAIT_S) as client,
        pytest.raises(lockfast.AccessDeniedError, match="credentials"),
    ):
        client.lock("a").acquire(timeout=WAIT_S)
