"""Attacks on the dashboard's login: forged requests, stolen halves, other sites."""

from __future__ import annotations

import json
import os
import ssl
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import trustme

from lockfast.errors import StoreMisconfiguredError
from lockfast.server import logins
from lockfast.server.logins import CHECK_HEADER, LOOPBACK_COOKIE, SECURE_COOKIE, Logins, read_key
from lockfast.server.tokens import TokenFile
from tests.server.conftest import Secured, take
from tests.servers.lockserver import ServerThread

WHOAMI = "/v1/whoami"
PAGE_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'"


@pytest.fixture
def secured(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secured]:
    """The server of the other tests; its HTTP clients are closed at the end."""
    opened = ExitStack()
    make = secured.http
    monkeypatch.setattr(
        secured, "http", lambda *of, **more: opened.enter_context(make(*of, **more))
    )
    with opened:
        yield secured


def logged_in(secured: Secured, principal: str = "alice") -> tuple[httpx.Client, str]:
    """Return the browser's half of a login, the cookie, and the page's half, the check value."""
    http = secured.http()
    response = http.post("/dashboard/login", json={"token": secured.token_of[principal]})
    assert response.status_code == 200, response.text
    return http, response.json()["check"]


def test_both_halves_together_are_a_login(secured: Secured) -> None:
    http, check = logged_in(secured)
    found = http.get(WHOAMI, headers={CHECK_HEADER: check})
    assert found.json()["principal"] == "alice"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_cookie_alone_is_nothing(secured: Secured, method: str) -> None:
    """Another site can make a browser send this, and another loopback port receives it."""
    http, _ = logged_in(secured)
    path = WHOAMI if method == "GET" else "/v1/sessions"
    body = "" if method == "GET" else "{}"
    headers = {"Content-Type": "application/json"}
    assert http.request(method, path, content=body, headers=headers).status_code == 401
    assert http.get("/dashboard/stream").status_code == 401


def test_the_check_value_alone_is_nothing(secured: Secured) -> None:
    _, check = logged_in(secured)
    assert secured.http().get(WHOAMI, headers={CHECK_HEADER: check}).status_code == 401


def test_the_check_value_of_another_login_is_refused(secured: Secured) -> None:
    alice, _ = logged_in(secured)
    _, bobs = logged_in(secured, "bob")
    assert alice.get(WHOAMI, headers={CHECK_HEADER: bobs}).status_code == 401
    assert alice.get(WHOAMI, headers={CHECK_HEADER: ""}).status_code == 401


def test_a_changed_cookie_is_refused(secured: Secured) -> None:
    http, check = logged_in(secured)
    cookie = http.cookies[LOOPBACK_COOKIE]
    for changed in (cookie[:-2] + "A=", "", "x" * 5000, secured.token_of["alice"]):
        headers = {CHECK_HEADER: check, "Cookie": f"{LOOPBACK_COOKIE}={changed}"}
        assert secured.http().get(WHOAMI, headers=headers).status_code == 401


def test_requests_from_another_origin_are_refused(secured: Secured) -> None:
    """Even with both halves: a page on another port of the same host is another origin."""
    http, check = logged_in(secured)
    for site in ("cross-site", "same-site"):
        headers = {CHECK_HEADER: check, "Sec-Fetch-Site": site}
        assert http.get(WHOAMI, headers=headers).status_code == 401
        assert http.post("/v1/sessions", json={}, headers=headers).status_code == 403
    login = {"token": secured.token_of["alice"]}
    foreign = {"Origin": "http://evil.example"}
    assert http.post("/dashboard/login", json=login, headers=foreign).status_code == 403
    form = http.post("/dashboard/login", data={"token": "x"})
    assert form.status_code == 415


def test_the_cookie_on_loopback(secured: Secured) -> None:
    """No script can read it, no other site gets it, and it does not contain the token."""
    http = secured.http()
    token = secured.token_of["alice"]
    said = http.post("/dashboard/login", json={"token": token}).headers["set-cookie"]
    attributes = {part.strip().lower() for part in said.split(";")[1:]}
    assert said.startswith(f"{LOOPBACK_COOKIE}=")
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    assert not any(part.startswith("domain") for part in attributes)
    assert token not in said


def test_the_cookie_over_tls(tmp_path: Path) -> None:
    """With TLS the cookie is bound to this host and to https."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    tokens = TokenFile(str(tmp_path / "tokens.json"))
    token = tokens.create("local")
    server = ServerThread(f"memory://{tmp_path}", tokens=tokens, ssl=context)
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with server, httpx.Client(base_url=server.base, verify=trusted) as http:
        response = http.post("/dashboard/login", json={"token": token})
        said = response.headers["set-cookie"].lower()
        assert said.startswith(f"{SECURE_COOKIE.lower()}=")
        assert "; secure" in said
        check = response.json()["check"]
        assert http.get(WHOAMI, headers={CHECK_HEADER: check}).json()["principal"] == "local"


def test_a_proxy_that_speaks_tls(secured: Secured) -> None:
    """The browser's origin is https although the proxy sends HTTP: the cookie is Secure."""
    http = secured.http()
    origin = {"Origin": secured.thread.base.replace("http://", "https://")}
    login = {"token": secured.token_of["alice"]}
    said = http.post("/dashboard/login", json=login, headers=origin).headers["set-cookie"]
    assert said.startswith(f"{SECURE_COOKIE}=")
    assert "; secure" in said.lower()


def test_logout_ends_the_login(secured: Secured) -> None:
    """Also for an attacker who copied both halves before."""
    http, check = logged_in(secured)
    copied = dict(http.cookies)
    headers = {CHECK_HEADER: check}
    assert http.post("/dashboard/logout", json={}, headers=headers).status_code == 200
    assert LOOPBACK_COOKIE not in http.cookies
    cookie = {"Cookie": f"{LOOPBACK_COOKIE}={copied[LOOPBACK_COOKIE]}"}
    assert secured.http().get(WHOAMI, headers={**headers, **cookie}).status_code == 401


def test_a_revoked_token_ends_the_login(secured: Secured) -> None:
    http, check = logged_in(secured)
    token = next(one for one in secured.tokens.all() if one.principal == "alice")
    secured.tokens.revoke(token.id)
    deadline = time.monotonic() + 10  # the file is read at most once a second
    while http.get(WHOAMI, headers={CHECK_HEADER: check}).status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_login_expires(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    http, check = logged_in(secured)
    assert http.get(WHOAMI, headers={CHECK_HEADER: check}).status_code == 200
    monkeypatch.setattr(logins, "LIFETIME_S", -1)
    assert http.get(WHOAMI, headers={CHECK_HEADER: check}).status_code == 401


def test_wrong_tokens_all_look_alike(secured: Secured) -> None:
    http = secured.http()
    answers = {
        http.post("/dashboard/login", json={"token": token}).text
        for token in ("lf_wrong", "x", "x" * 3000, "lf_é", "")
    }
    assert len(answers) == 1
    for body in ("{}", '{"token": 7}', "[]", '{"token": null}', ""):
        headers = {"Content-Type": "application/json"}
        response = http.post("/dashboard/login", content=body, headers=headers)
        assert response.status_code == 422
    audit = [json.loads(line) for line in secured.audit.read_text().splitlines()]
    assert [one["what"] for one in audit] == ["login refused"] * 5
    assert all("lf_" not in json.dumps(one) for one in audit)


def test_the_key_survives_a_restart_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "cookie.key"
    key = read_key(str(path))
    assert len(key) == 32
    assert read_key(str(path)) == key
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(StoreMisconfiguredError, match=r"cookie\.key"):
        read_key(str(path))


def test_a_key_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    """An empty key would be known to everybody."""
    path = tmp_path / "cookie.key"
    path.touch(0o600)
    with pytest.raises(StoreMisconfiguredError, match=r"cookie\.key"):
        read_key(str(path))


def test_logins_of_servers_with_different_keys_differ(secured: Secured) -> None:
    http, check = logged_in(secured)
    secured.thread.server.authentication.logins = Logins()
    assert http.get(WHOAMI, headers={CHECK_HEADER: check}).status_code == 401


def test_the_page_and_its_policy(secured: Secured) -> None:
    """The page runs only its own scripts, is never framed, and is not cached."""
    for path in ("/", "/dashboard/static/main.js", "/dashboard/drawing.css"):
        response = secured.http().get(path)
        assert response.status_code == 200
        policy = response.headers["content-security-policy"]
        assert policy.startswith(PAGE_POLICY)
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["cache-control"] == "no-store"
    data = secured.http("alice").get("/dashboard/session")
    assert data.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"


@pytest.mark.parametrize(
    "path",
    [
        "../routes.py",
        "..%2froutes.py",
        "%2e%2e/routes.py",
        "/etc/passwd",
        "vendor/",
        "main.js%00.css",
        "nothing.js",
    ],
)
def test_only_files_of_the_page_are_served(secured: Secured, path: str) -> None:
    assert secured.http().get(f"/dashboard/static/{path}").status_code == 404


def test_the_page_contains_no_inline_code() -> None:
    """Inline scripts and styles would need a weaker policy, and innerHTML would undo it."""
    static = Path(logins.__file__).parent / "dashboard" / "static"
    page = (static / "index.html").read_text()
    assert page.count("<script") == page.count('<script type="module" src=') == 1
    assert "<style" not in page
    assert " style=" not in page
    own = [path for path in static.rglob("*.js") if "vendor" not in path.parts]
    assert len(own) > 10
    for path in own:
        code = path.read_text().replace("there is no innerHTML", "")
        for dangerous in (
            ".innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ):
            assert dangerous not in code, (path, dangerous)


def test_data_needs_credentials_and_rights(secured: Secured) -> None:
    for path in ("session", "stream", "lock?name=orders", "graph"):
        assert secured.http().get(f"/dashboard/{path}").status_code == 401
        assert secured.http("nobody").get(f"/dashboard/{path}").status_code == 403
    assert secured.http("bob").get("/dashboard/lock?name=orders/1").status_code == 403
    assert secured.http("alice").get("/dashboard/lock?name=orders/1").status_code == 200
    for wrong in ("", "a//b", "x" * 600):
        response = secured.http("root").get("/dashboard/lock", params={"name": wrong})
        assert response.status_code == 422
    response = secured.http("root").get("/dashboard/lock?name=a&kind=other")
    assert response.status_code == 422


def test_the_wait_graph_shows_readable_locks_only(secured: Secured) -> None:
    root, alice = secured.http("root"), secured.http("alice")
    for session, name in (("s-1", "orders/1"), ("s-2", "payroll")):
        take(root, name, session)
        take(root, name, session + "w")
    with alice.stream("GET", "/dashboard/stream") as stream:
        for line in stream.iter_lines():
            if '"last":true' in line:
                break
        assert "payroll" not in line
        found = alice.get("/dashboard/graph").json()
        assert [edge[3] for edge in found["edges"]] == ["orders/1"]
        assert "payroll" not in found["svg"]
        assert len(root.get("/dashboard/graph").json()["edges"]) == 2
