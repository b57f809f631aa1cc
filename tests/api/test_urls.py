"""Store URLs: schemes, options, passwords, and the default when there is none."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lockfast
from lockfast import StoreMisconfiguredError, UnsupportedError
from lockfast.api import settings as api_settings
from lockfast.stores.registry import parse_url

SECRET = "hunter2"
WITH_PASSWORD = [
    f"redis://user:a/{SECRET}@host.invalid",
    f"nonsense://user:{SECRET}@host:6379/0",
    f"nonsense://:{SECRET}@host",
    f"nonsenses://user:{SECRET}@a,b,c/0?x=1",
    f"postgresql://user:{SECRET}@host/db",
    f"nonsense://user:{SECRET}@host",
    f"memory://user:{SECRET}@host?nonsense=1",
    f"sqlite://user:{SECRET}@host?nonsense=1",
    # passwords that were not escaped
    f"nonsense://user:a@{SECRET}@host",
    f"nonsense://user:a/{SECRET}@host",
    f"nonsense://user:a?{SECRET}@host",
    f"nonsense://user:a#{SECRET}@host",
    f"nonsense://user:a:{SECRET}@host",
    f"nonsense://user:[{SECRET}@host",
    f"redis:user:{SECRET}@host",
    f"nonsense:/user:{SECRET}@host",
    f"user:{SECRET}@host",
    f"user:a://{SECRET}@host",
    f"NONSENSE://user:{SECRET}@host",
    # and the other places where passwords are put
    f"nonsense://host/0?password={SECRET}",
    f"nonsense://host?user=me&password={SECRET}&x=1",
    f"nonsense://host?sentinel_password={SECRET}",
    f"nonsense://host?auth_token={SECRET}",
    f"memory://host?secret={SECRET}",
]


@pytest.mark.parametrize("url", WITH_PASSWORD)
def test_a_password_is_never_shown(
    url: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not in an error or its causes, not in a log or a repr."""
    caplog.set_level(logging.DEBUG)
    shown = ""
    try:
        client = lockfast.connect(url, connect_timeout=0.05)
        shown += f"{client!r} {client.url} {client.lock('a')!r}"
        with client, client.lock("a").acquire(timeout=0.05) as lease:
            shown += repr(lease)
    except Exception as error:
        shown += "".join(traceback.format_exception(error))
        # The source line of this test contains the URL; that is not a leak.
        shown = "\n".join(line for line in shown.splitlines() if "connect(url" not in line)
    captured = capsys.readouterr()
    assert SECRET not in shown + caplog.text + captured.out + captured.err


def test_the_user_and_the_host_are_shown() -> None:
    with pytest.raises(UnsupportedError) as caught:
        lockfast.connect("nonsense://someone:pass@somewhere/there?a=b")
    assert "nonsense://someone:***@somewhere/there?a=b" in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "://x",
        "1a://x",
        "A://x",
        "/path/to/locks.db",
        "C:\\locks.db",
        "sqlite:/x",
        "memory:x",
        " memory://x",
        "memory://a b\n",
        "memory://a\tb",
        "memory://a#b",
        "memory://%ff",
        "sqlite://",
        "sqlite:///tmp/%00",
        "sqlite:///",
        "sqlite:///?namespace=x",
        "sqlite://.",
        "memory://x?namespace=a/b",
        "memory://x?namespace=..",
    ],
)
def test_what_is_no_url_of_a_store_is_refused(url: str) -> None:
    with pytest.raises(StoreMisconfiguredError):
        lockfast.connect(url)


@pytest.mark.parametrize("url", [5, b"memory://", Path("/tmp/x"), object()])
def test_a_url_is_a_str(url: object) -> None:
    with pytest.raises(TypeError, match="URL must be a str"):
        lockfast.connect(url)


def test_a_scheme_that_there_is_not_names_those_there_are() -> None:
    with pytest.raises(UnsupportedError, match=r"sqlite://.*memory://") as refused:
        lockfast.connect("carrier-pigeon://loft")
    assert "testing://" not in str(refused.value)
    with pytest.raises(UnsupportedError, match=r"did you mean postgresql://\?"):
        lockfast.connect("postgressql://host/db")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("memory://x?nonsense=1", "no option 'nonsense'"),
        ("sqlite:///tmp/x?nonsense=1", "no option 'nonsense'.*driver, death_watch"),
        ("sqlite:///tmp/x?death_watch=perhaps", "neither on nor off"),
        ("sqlite:///tmp/x?driver=stdlib&driver=apsw", "twice"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(url: str, why: str) -> None:
    with pytest.raises(StoreMisconfiguredError, match=why):
        lockfast.connect(url)


def test_a_driver_that_there_is_not_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="stdlib and apsw"):
        lockfast.connect(f"sqlite://{tmp_path}/locks.db?driver=nonsense")


def test_a_home_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(StoreMisconfiguredError, match="home"):
        lockfast.connect("sqlite://~nobody-of-this-name/locks.db")


@given(st.text(st.characters(), max_size=30))
def test_any_text_is_a_url_or_a_typed_error(text: str) -> None:
    for url in (text, f"memory://{text}", f"sqlite:///{text}", f"x://{text}?{text}"):
        try:
            parse_url(url)
        except StoreMisconfiguredError:
            pass


names = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\x00"),
    min_size=1,
    max_size=20,
)


@given(names)
def test_a_quoted_path_is_that_path(name: str) -> None:
    assert parse_url(f"sqlite:///tmp/{quote(name)}").location == f"/tmp/{name}"


# ── without a URL ────────────────────────────────────────────────────────────────────


@pytest.fixture
def default(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Return the client behind `lockfast.lock`; discard it afterwards."""
    from lockfast.api.blocking import client as module

    monkeypatch.setattr(module._default, "client", None)
    yield
    if module._default.client is not None:
        module._default.client.close()


def test_without_a_url_it_is_this_users_lock_file(default: None, tmp_path: Path) -> None:
    with lockfast.lock("a") as lease:
        assert lease.name == "a"
    path = tmp_path / "state" / "lockfast" / "locks.db"
    assert path.exists()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("directory", ["with space", "100%", "%41", "a?b=c", "a#b", "é", "a&b"])
def test_any_directory_can_be_the_state_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, directory: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / directory))
    with lockfast.connect() as client, client.lock("a"):
        assert (tmp_path / directory / "lockfast" / "locks.db").exists()


def test_a_relative_state_directory_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    with lockfast.connect() as client, client.lock("a"):
        assert (tmp_path / ".local" / "state" / "lockfast" / "locks.db").exists()


def test_the_environment_says_where_and_how(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCKFAST_URL", f"sqlite://{tmp_path}/there.db")
    monkeypatch.setenv("LOCKFAST_TTL", "1m12.5s")
    monkeypatch.setenv("LOCKFAST_OWNER", "from outside")
    with lockfast.connect() as client, client.lock("a"):
        assert client.url == f"sqlite://{tmp_path}/there.db"
        (session,) = client.sessions()
        assert (session.ttl, session.owner) == (72.0, "from outside"), "rounded down to a step"
    with lockfast.connect("memory://elsewhere", ttl=7, owner="me") as client, client.lock("a"):
        (session,) = client.sessions()
        assert (session.ttl, session.owner) == (7.0, "me")


@pytest.mark.parametrize("ttl", ["soon", "nan", "-1", "0"])
def test_an_environment_that_makes_no_sense_is_refused(
    monkeypatch: pytest.MonkeyPatch, ttl: str
) -> None:
    monkeypatch.setenv("LOCKFAST_TTL", ttl)
    with pytest.raises(ValueError, match=r"TTL|ttl"):
        lockfast.connect("memory://")


@pytest.mark.parametrize("program", ["x" * 300, "é" * 150, "a\nb", "\udcff", ""])
def test_any_program_name_makes_an_owner(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr("sys.argv", [f"/bin/{program}"])
    owner = api_settings.default_owner()
    assert api_settings.check_text(owner, "owner", api_settings.OWNER_BYTES_MAX) == owner
    lockfast.connect("memory://owners").close()
