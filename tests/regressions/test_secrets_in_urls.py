"""No spelling of a URL lets its password into a label, a repr, an error or a log.

`redis://u:p?SECRET@h` named the rest of the password as an unknown option, `u:SECRET%40h` hid
the @ that the label looked for, and repr(StoreUrl) showed everything.
"""

from __future__ import annotations

import string
import traceback
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lockfast.errors import LockfastError
from lockfast.stores.etcd.address import parse as parse_etcd
from lockfast.stores.redis.address import parse as parse_redis
from lockfast.stores.registry import StoreUrl, label_of, open_store, parse_url

SECRET = "hunter2"
MARKS = "@:/?#&=%,[]. '\"\\"

passwords = st.tuples(
    st.text(string.ascii_letters + string.digits + MARKS, max_size=6),
    st.text(string.ascii_letters + string.digits + MARKS, max_size=6),
).map(lambda ends: f"{ends[0]}{SECRET}{ends[1]}")
users = st.text(string.ascii_lowercase + "-", max_size=5)
schemes = st.sampled_from(["redis", "rediss", "unix", "etcd", "etcds", "memory", "sqlite", "other"])
spellings = st.sampled_from([str, quote, lambda text: quote(text, safe="")])
ats = st.sampled_from(["@", "%40"])
colons = st.sampled_from([":", "%3A", "%3a"])
places = st.sampled_from(["h", "h:1", "[::1]:1/0", "h,i,j", "/run/redis.sock", "h?eviction=allow"])


def everything_shown(url: str) -> str:
    """Return everything that a user of this URL can see of it."""
    shown = label_of(url)
    try:
        parsed = parse_url(url)
        shown += repr(parsed) + str(parsed) + f"{parsed}" + parsed.label
        for parse in (parse_redis, parse_etcd):
            shown += _address(parsed, parse)
        if parsed.scheme in ("memory", "other"):
            open_store(url, "threads").close()
    except LockfastError as error:
        shown += _text_of(error)
    return shown


def _address(url: StoreUrl, parse: object) -> str:
    assert callable(parse)
    try:
        return repr(parse(url))
    except LockfastError as error:
        return _text_of(error)


def _text_of(error: BaseException) -> str:
    # Without the source lines of a traceback, because this file contains the secret.
    return "".join(traceback.format_exception_only(error)) + repr(error) + repr(vars(error))


@pytest.mark.parametrize(
    "url",
    [
        f"redis://u:p?{SECRET}@h",
        f"redis://u:p?{SECRET}=x@h",
        f"redis://u:{SECRET}%40h",
        f"redis://u%3A{SECRET}@h",
        f"redis://u:{SECRET}",
        f"etcd://u:{SECRET}",
        f"redis://u:a/{SECRET}",
        f"redis://h?p%61ssword={SECRET}",
        f"redis://h?password=a&{SECRET}@b",
        f"redis://h?{SECRET}",
    ],
)
def test_spellings_that_showed_it(url: str) -> None:
    assert SECRET not in everything_shown(url)


# A busy machine may be slow to generate examples; that is no failure.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example("redis", "u", "p?" + SECRET, str, ":", "@", "h")
@given(schemes, users, passwords, spellings, colons, ats, places)
def test_no_spelling_shows_it(
    scheme: str, user: str, password: str, spell: object, colon: str, at: str, place: str
) -> None:
    assert callable(spell)
    url = f"{scheme}://{user}{colon}{spell(password)}{at}{place}"
    assert SECRET not in everything_shown(url), url


def test_the_rest_of_a_url_is_still_shown() -> None:
    assert (
        label_of("redis://me:x@h:6379/2?eviction=allow") == "redis://me:***@h:6379/2?eviction=allow"
    )
    assert label_of("etcd://a:2379,[::1]:2379") == "etcd://a:2379,[::1]:2379"
    assert label_of("sqlite:///tmp/a%20b.db?driver=apsw") == "sqlite:///tmp/a%20b.db?driver=apsw"
