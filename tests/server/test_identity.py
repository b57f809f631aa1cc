"""Tokens, certificates, JWTs and quotas: what must not be accepted, and what must."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import lockfast
from lockfast.errors import AccessDeniedError, LimitError, StoreMisconfiguredError
from lockfast.server.config import Config, Jwt, Policy, Tls, read_config
from lockfast.server.identity import Authentication, Refusal
from lockfast.server.jwt import JwtVerifier, _usable
from lockfast.server.listening import parse_place, peer_of, tls_context
from lockfast.server.quotas import Quotas
from lockfast.server.rights import ADMIN, READ, Grant, RightsTable
from lockfast.server.tokens import PREFIX, TokenFile, TokenVerifier
from tests.server.conftest import Secured, take
from tests.server.waiting import until
from tests.servers.lockserver import ServerProcess, ServerThread

# ── tokens ───────────────────────────────────────────────────────────────────────────


def test_a_wrong_token_and_an_unknown_one_are_answered_alike(secured: Secured) -> None:
    right = secured.token_of["alice"]
    answers = set()
    for token in (PREFIX + "x" * 43, right[:-1] + ("a" if right[-1] != "a" else "b"), "junk"):
        response = httpx.get(
            secured.thread.base + "/v1/locks", headers={"Authorization": f"Bearer {token}"}
        )
        answers.add((response.status_code, response.text))
    assert len(answers) == 1
    assert answers.pop()[0] == 401


def test_a_token_in_the_url_is_no_token(secured: Secured) -> None:
    token = secured.token_of["root"]
    for query in (f"access_token={token}", f"token={token}"):
        response = httpx.get(f"{secured.thread.base}/v1/locks?{query}")
        assert response.status_code == 401


def test_two_credentials_are_none(secured: Secured) -> None:
    headers = [("Authorization", f"Bearer {secured.token_of[name]}") for name in ("bob", "root")]
    assert httpx.get(secured.thread.base + "/v1/locks", headers=headers).status_code == 401


def test_only_hashes_are_kept(secured: Secured) -> None:
    text = Path(secured.tokens.path).read_text()
    assert not any(token in text for token in secured.token_of.values())
    assert os.stat(secured.tokens.path).st_mode & 0o777 == 0o600
    token = secured.token_of["alice"]
    assert token.startswith(PREFIX)
    assert len(token) >= len(PREFIX) + 43, "256 bits"


def test_a_readable_token_file_is_refused(tmp_path: Path) -> None:
    file = TokenFile(str(tmp_path / "tokens.json"))
    file.create("alice")
    os.chmod(file.path, 0o644)
    with pytest.raises(StoreMisconfiguredError, match="other users"):
        TokenFile(file.path).all()


def test_two_tokens_live_for_rotation(tmp_path: Path) -> None:
    file = TokenFile(str(tmp_path / "tokens.json"))
    old, new = file.create("alice"), file.create("alice")
    verifier = TokenVerifier(file)
    assert verifier.principal_of(old) == verifier.principal_of(new) == "alice"
    with pytest.raises(LimitError):
        file.create("alice")
    assert file.revoke(file.all()[0].id)
    verifier._look_at = 0
    with pytest.raises(Refusal):
        verifier.principal_of(old)
    assert verifier.principal_of(new) == "alice"
    assert not file.revoke("nothing")


def test_writers_of_the_token_file_do_not_undo_each_other(tmp_path: Path) -> None:
    """A lost update would bring a revoked token back."""
    path = str(tmp_path / "tokens.json")
    TokenFile(path).create("old")
    (old,) = TokenFile(path).all()
    start = threading.Barrier(9)

    def create(principal: str) -> None:
        start.wait()
        TokenFile(path).create(principal)

    def revoke() -> None:
        start.wait()
        assert TokenFile(path).revoke(old.id)

    writers = [threading.Thread(target=create, args=(f"p{at}",)) for at in range(8)]
    writers.append(threading.Thread(target=revoke))
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
    found = {token.principal for token in TokenFile(path).all()}
    assert found == {f"p{at}" for at in range(8)}


def test_an_expired_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = TokenFile(str(tmp_path / "tokens.json"))
    token = file.create("alice", 60)
    verifier = TokenVerifier(file)
    assert verifier.principal_of(token) == "alice"
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(Refusal, match="expired"):
        verifier.principal_of(token)


def test_a_python_client_uses_a_token_file(secured: Secured, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(secured.token_of["alice"] + "\n")
    url = secured.thread.url(token_file=str(path))
    with lockfast.connect(url) as client:
        with client.lock("orders/1") as lease:
            assert lease.token > 0
            assert client.inspect("orders/1").holders[0].owner.endswith("[alice]")
        with pytest.raises(AccessDeniedError, match="no right to acquire"):
            client.lock("billing/1").acquire(timeout=5)
        assert secured.token_of["alice"] not in repr(client)


def test_a_token_is_not_sent_unencrypted_to_another_machine() -> None:
    with pytest.raises(StoreMisconfiguredError, match="unencrypted") as caught:
        lockfast.connect("http://:lf_secret@locks.example")
    assert "lf_secret" not in str(caught.value)


# ── proxies ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("peers", "status"), [({"127.0.0.1"}, 200), ({"10.0.0.1"}, 401)])
def test_a_proxy_header_counts_from_listed_peers_only(peers: set[str], status: int) -> None:
    policy = Policy(RightsTable([Grant("alice", "", "", frozenset({ADMIN}))]))
    authentication = Authentication(proxies=frozenset(peers), proxy_header="X-User")
    with ServerThread("memory://proxy", Config(policy), authentication=authentication) as server:
        response = httpx.get(server.base + "/v1/whoami", headers={"X-User": "alice"})
        assert response.status_code == status
        for wrong in ("al ice", "a]", ""):
            refused = httpx.get(server.base + "/v1/whoami", headers={"X-User": wrong})
            assert refused.status_code == 401


# ── TLS ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_server(tmp_path: Path, authority: trustme.CA) -> Iterator[ServerThread]:
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    cert, key, ca = (str(tmp_path / name) for name in ("cert.pem", "key.pem", "ca.pem"))
    tls = Tls(cert, key, ca)
    policy = Policy(RightsTable([Grant("cert:alice.example", "", "", frozenset({ADMIN}))]))
    with ServerThread("memory://tls", Config(policy, tls=tls), ssl=tls_context(tls)) as started:
        yield started


def identified(directory: Path, by: trustme.CA, name: str) -> tuple[str, str]:
    issued = by.issue_cert(name)
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    return str(cert), str(key)


def test_a_certificate_of_our_authority_is_an_identity(
    tls_server: ServerThread, authority: trustme.CA, tmp_path: Path
) -> None:
    cert, key = identified(tmp_path, authority, "alice.example")
    ca = str(tmp_path / "ca.pem")
    url = tls_server.url(ca=ca, cert=cert, key=key)
    with lockfast.connect(url) as client, client.lock("a"):
        assert client.inspect("a").holders[0].owner.endswith("[cert:alice.example]")
    with lockfast.connect(tls_server.url(ca=ca)) as nobody:
        with pytest.raises(AccessDeniedError, match="credentials"):
            nobody.lock("a").acquire(timeout=5)


def test_certificates_of_others_are_refused(tls_server: ServerThread, tmp_path: Path) -> None:
    ca = str(tmp_path / "ca.pem")
    cert, key = identified(tmp_path, trustme.CA(), "alice.example")
    with lockfast.connect(tls_server.url(ca=ca, cert=cert, key=key)) as impostor:
        with pytest.raises(lockfast.StoreError):
            impostor.lock("a").acquire(timeout=3)


def test_old_tls_is_refused(tls_server: ServerThread, tmp_path: Path) -> None:
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.raises(httpx.ConnectError):
        httpx.get(tls_server.base + "/healthz", verify=context)


@pytest.mark.parametrize(
    ("certificate", "principal"),
    [
        ({"subject": ((("commonName", "alice.example"),),)}, ""),
        ({"subjectAltName": (("DNS", "a.example"), ("URI", "spiffe://x/a"))}, "cert:spiffe://x/a"),
        ({"subjectAltName": (("DNS", "a.example"), ("DNS", "b.example"))}, "cert:a.example"),
        ({"subjectAltName": (("DNS", "x [root]"),)}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_only_the_alternative_names_are_an_identity(certificate: Any, principal: str) -> None:
    class Tls:
        def getpeercert(self) -> Any:
            return certificate

    class Transport(asyncio.BaseTransport):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return Tls()

    assert peer_of(Transport()) == principal


def write_tls(directory: Path, authority: trustme.CA, trusted: trustme.CA) -> None:
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    issued.private_key_pem.write_to_path(directory / "key.pem")
    trusted.cert_pem.write_to_path(directory / "clients.pem")


def test_certificates_are_read_again(authority: trustme.CA, tmp_path: Path) -> None:
    """A CA that was removed is no longer trusted, and files that do not fit change nothing."""
    former, newer = trustme.CA(), trustme.CA()
    write_tls(tmp_path, authority, former)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    config = tmp_path / "server.toml"
    config.write_text(
        f'[tls]\ncert = "{tmp_path}/cert.pem"\nkey = "{tmp_path}/key.pem"\n'
        f'client_ca = "{tmp_path}/clients.pem"\n'
        '[[rights]]\nprincipal = "*"\nallow = ["admin"]\n'
    )
    identities = {
        ca: identified(tmp_path, ca, f"{at}.example") for at, ca in enumerate([former, newer])
    }
    with ServerProcess("memory://", tmp_path, "--config", str(config)) as server:

        def principal(ca: trustme.CA) -> str | None:
            trust = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            trust.load_cert_chain(*identities[ca])
            try:
                response = httpx.get(server.url + "/v1/whoami", verify=trust)
            except httpx.TransportError:
                return None
            return str(response.json()["principal"])

        def reload(expected: str) -> None:
            seen = len(server.lines)
            server.process.send_signal(signal.SIGHUP)
            until(lambda: len(server.lines) > seen, "an answer to SIGHUP")
            assert server.lines[-1].startswith(expected)

        assert principal(former) == "cert:0.example"
        assert principal(newer) is None
        config.write_text(
            config.read_text() + "[quotas.default]\nrequests_per_second = 0\nburst = 0\n"
        )
        (tmp_path / "key.pem").write_bytes(
            trustme.CA().issue_cert("x.example").private_key_pem.bytes()
        )
        reload("not reloaded")
        assert principal(former) == "cert:0.example", "neither certificates nor quotas changed"
        config.write_text(config.read_text().partition("[quotas")[0])
        write_tls(tmp_path, authority, newer)
        reload("reloaded")
        assert principal(newer) == "cert:1.example"
        assert principal(former) is None
        assert server.stop() == 0


# ── JWT ──────────────────────────────────────────────────────────────────────────────

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def provider(authority: trustme.CA, tmp_path: Path) -> Iterator[JwtVerifier]:
    """A verifier with the keys of a real https server."""
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
    keys = json.dumps({"keys": [{**public, "kid": "one", "use": "sig"}]}).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(keys)))
            self.end_headers()
            self.wfile.write(keys)

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    ca = tmp_path / "jwks-ca.pem"
    authority.cert_pem.write_to_path(ca)
    url = f"https://127.0.0.1:{server.server_address[1]}/keys"
    verifier = JwtVerifier(Jwt("https://id.example", "lockfast", url, ca=str(ca)))
    yield verifier
    verifier.close()
    server.shutdown()
    server.server_close()
    serving.join(5)


def claims(**changed: Any) -> dict[str, Any]:
    found = {"iss": "https://id.example", "aud": "lockfast", "sub": "alice"}
    return {**found, "exp": int(time.time()) + 600, **changed}


def signed(payload: dict[str, Any], key: Any = KEY, alg: str = "RS256", **head: str) -> str:
    return jwt.encode(payload, key, alg, headers={"kid": "one", **head})


def public_pem() -> bytes:
    return KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def hs256_with_the_public_key() -> str:
    """Return a token forged by hand, because PyJWT refuses to make one."""
    import base64
    import hashlib
    import hmac

    def part(value: object) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    text = part({"alg": "HS256", "kid": "one"}) + b"." + part(claims())
    mac = hmac.new(public_pem(), text, hashlib.sha256).digest()
    return (text + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in claims().items() if key != name}


FORGERIES: dict[str, Callable[[], str]] = {
    "another key": lambda: signed(claims(), OTHER),
    "an unknown key": lambda: signed(claims(), kid="two"),
    "its own key set": lambda: signed(claims(), OTHER, jku="https://evil.example/keys"),
    "its own certificate": lambda: signed(claims(), OTHER, x5u="https://evil.example/cert"),
    "no signature": lambda: jwt.encode(claims(), "", "none", headers={"kid": "one"}),
    "HS256 with the public key": hs256_with_the_public_key,
    "expired": lambda: signed(claims(exp=int(time.time()) - 60)),
    "another audience": lambda: signed(claims(aud="mail")),
    "another issuer": lambda: signed(claims(iss="https://evil.example")),
    "no end": lambda: signed(without("exp")),
    "no subject": lambda: signed(without("sub")),
    "no audience": lambda: signed(without("aud")),
    "a name with a bracket": lambda: signed(claims(sub="x [root]")),
    "not a JWT": lambda: "a.b.c",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_jwt_is_refused(provider: JwtVerifier, forgery: str) -> None:
    with pytest.raises(Refusal):
        provider.principal_of(FORGERIES[forgery]())


def test_a_key_that_cannot_be_read_does_not_disable_the_others() -> None:
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
    strange: list[Any] = [
        {"kty": "EC", "crv": "P-999", "kid": "curve"},
        {"kty": "RSA", "kid": "empty"},
        {**public},
        "text",
        None,
        {"kty": "oct", "kid": "symmetric", "k": "c2VjcmV0"},
        {**public, "kid": "encryption", "use": "enc"},
    ]
    assert list(dict(_usable([*strange, {**public, "kid": "one"}]))) == ["one"]


def test_a_jwt_names_a_principal_of_its_own_kind(provider: JwtVerifier) -> None:
    assert provider.principal_of(signed(claims())) == "oidc:alice"


@pytest.mark.parametrize(
    "settings",
    [
        Jwt("i", "a", "http://id.example/keys"),
        Jwt("i", "a", "file:///etc/passwd"),
        Jwt("i", "a", "https://id.example/keys", ("HS256",)),
        Jwt("i", "a", "https://id.example/keys", ("none",)),
    ],
)
def test_unsafe_jwt_settings_do_not_start(settings: Jwt) -> None:
    with pytest.raises(StoreMisconfiguredError):
        JwtVerifier(settings)


# ── quotas ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("secured", [Quotas(requests_per_second=0.001, burst=5)], indirect=True)
def test_keep_alives_have_a_rate_of_their_own(secured: Secured) -> None:
    with secured.http("alice") as alice:
        take(alice, "orders/1", "a")
        statuses = [alice.get("/v1/sessions/a/claims/1").status_code for _ in range(6)]
        assert statuses[-1] == 429
        limited = alice.get("/v1/sessions/a/claims/1")
        assert limited.headers["retry-after"] == "1"
        assert alice.post("/v1/sessions/a/renewals", json={}).status_code == 200
        assert alice.delete("/v1/sessions/a/claims/1").status_code == 200
        with secured.http("bob") as bob:
            assert bob.get("/v1/locks").status_code == 200, "others are not concerned"


@pytest.mark.parametrize("secured", [Quotas(requests_per_second=0.001, burst=5)], indirect=True)
@pytest.mark.parametrize(
    "path", ["/v1/wait-graph", "/v1/deadlocks", "/metrics", "/dashboard/session"]
)
def test_reads_do_not_use_the_rate_of_keep_alives(secured: Secured, path: str) -> None:
    with secured.http("alice") as alice:
        take(alice, "orders/1", "a")
        statuses = [alice.get(path).status_code for _ in range(8)]
        assert statuses == [200] * 4 + [429] * 4
        assert alice.post("/v1/sessions/a/renewals", json={}).status_code == 200


@pytest.mark.parametrize(
    "secured", [Quotas(sessions=2, claims=3, waiters=1, streams=1)], indirect=True
)
def test_counts_are_limited(secured: Secured) -> None:
    accept = {"Accept": "application/x-ndjson"}
    with secured.http("alice") as alice:
        assert take(alice, "orders/1", "a", 1).status_code == 200
        assert take(alice, "orders/1", "b", 1).status_code == 202
        assert take(alice, "orders/2", "c", 1).status_code == 429, "a third session"
        assert take(alice, "orders/2", "a", 2).status_code == 429, "one waits already"
        alice.delete("/v1/sessions/b/claims/1")
        assert take(alice, "orders/2", "a", 2).status_code == 200
        assert take(alice, "orders/3", "a", 3).status_code == 200
        assert take(alice, "orders/4", "a", 4).status_code == 429, "a fourth claim"
        assert take(alice, "orders/3", "a", 3).status_code == 200, "a retry is no new claim"
        alice.delete("/v1/sessions/a")
        assert take(alice, "orders/4", "c", 1).status_code == 200
        with alice.stream("GET", "/v1/sessions/c/wakes", headers=accept) as stream:
            lines = stream.iter_lines()  # kept: without it httpx closes the stream
            next(lines)
            with secured.http("alice") as again:
                assert again.get("/v1/sessions/b/wakes", headers=accept).status_code == 429


# ── addresses ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "is_private"),
    [
        ("127.0.0.1:1", True),
        ("127.8.8.8:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("/run/lockfast.sock", True),
        ("127.evil.example:1", False),
        ("localhost.evil.example:1", False),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        (":1", False),
        ("10.0.0.1:1", False),
    ],
)
def test_which_addresses_are_private(text: str, is_private: bool) -> None:
    assert parse_place(text).is_private is is_private


# ── configuration ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        "[server]\nhost = 'a'",
        "[[rights]]\nprincipal = 'a'\nallow = ['reed']",
        "[[rights]]\nprincipal = 'a'",
        "rights = 3",
        "[quotas.default]\nclaims = 'many'",
        "[quotas.default]\nclams = 3",
        "[tls]\ncert = 'x'",
        "[jwt]\nissuer = 'x'",
        "not toml",
    ],
)
def test_a_mistake_in_the_file_is_an_error(tmp_path: Path, text: str) -> None:
    """A misspelt right must not grant nothing, or everything."""
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(StoreMisconfiguredError):
        read_config(str(path))


@pytest.mark.parametrize(
    ("written", "namespaces"),
    [("default", [""]), ("", [""]), ("team", ["team"]), ("*", ["", "team"])],
)
def test_a_right_is_given_in_the_namespace_that_is_written(
    tmp_path: Path, written: str, namespaces: list[str]
) -> None:
    path = tmp_path / "server.toml"
    path.write_text(f"[[rights]]\nprincipal = 'a'\nallow = ['read']\nnamespace = '{written}'")
    rights = read_config(str(path)).policy.rights
    assert [each for each in ("", "team") if rights.of("a", each).allow(READ, "x")] == namespaces
