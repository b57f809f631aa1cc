"""Lock names: two spellings are never one lock, and only valid names are accepted."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lockfast.core.names import (
    NAME_BYTES_MAX,
    ancestors,
    check_name,
    check_prefix,
    escape_field,
)
from lockfast.core.rows import SEPARATOR
from lockfast.errors import InvalidNameError

HOSTILE = st.text(
    st.one_of(
        st.sampled_from("/.%\x00\x1f\x7f\x80\u0301\u00e9\u2028\ud800\U0010ffff {}~\\:"),
        st.characters(),
    ),
    max_size=40,
)


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "orders/42",
        "a/b/c",
        "...",
        "a..b",
        ".a/b.",
        "report:{day}",
        "with space",
        "\u00e9",
        "日本/東京",
        "\U0001f512",
        "C:\\temp",
        "~",
        "x" * NAME_BYTES_MAX,
        "\u00e9" * (NAME_BYTES_MAX // 2),
    ],
)
def test_a_name_is_returned_unchanged(name: str) -> None:
    assert check_name(name) is name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        (None, "NoneType"),
        (b"a", "bytes"),
        (7, "int"),
        ("/", "segment"),
        ("/a", "segment"),
        ("a/", "segment"),
        ("a//b", "segment"),
        (".", "segment"),
        ("..", "segment"),
        ("a/../b", "segment"),
        ("a/./b", "segment"),
        ("../etc/passwd", "segment"),
        ("a\x00", "control"),
        ("a\nb", "control"),
        ("a\x7f", "control"),
        ("a\x1fb", "control"),
        ("\u0085\u00e9", "control"),
        ("é\u2028", "control"),
        ("e\u0301", "NFC"),
        ("\u212b", "NFC"),
        ("\ud800", "surrogate"),
        ("x" * (NAME_BYTES_MAX + 1), "513 bytes"),
        ("\u00e9" * (NAME_BYTES_MAX // 2 + 1), "514 bytes"),
    ],
)
def test_what_is_no_name_is_refused_with_the_reason(name: object, why: str) -> None:
    with pytest.raises(InvalidNameError, match=why):
        check_name(name)


@settings(max_examples=2_000)
@given(HOSTILE)
@example("\ud800")
def test_a_hostile_name_is_a_typed_error_or_exactly_itself(name: str) -> None:
    """An accepted name cannot break out of a key, a path or an encoding."""
    try:
        checked = check_name(name)
    except InvalidNameError:
        return
    assert checked == name
    assert checked.encode().decode() == name
    assert unicodedata.normalize("NFC", name) == name
    assert SEPARATOR not in name
    assert not {"", ".", ".."} & set(name.split("/"))
    assert not any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name)
    assert 1 <= len(name.encode()) <= NAME_BYTES_MAX


@given(HOSTILE, HOSTILE)
def test_two_spellings_of_one_text_are_never_two_names(one: str, other: str) -> None:
    """Of all spellings that look the same, at most one is a valid name."""
    spellings = {unicodedata.normalize(form, one + other) for form in ("NFC", "NFD")}
    named = 0
    for spelling in spellings:
        try:
            check_name(spelling)
        except InvalidNameError:
            continue
        named += 1
    assert named <= 1


@given(HOSTILE)
def test_a_name_cut_anywhere_is_a_prefix(name: str) -> None:
    try:
        check_name(name)
    except InvalidNameError:
        return
    for end in range(len(name) + 1):
        assert check_prefix(name[:end]) == name[:end]


@pytest.mark.parametrize("prefix", [None, b"a", 7, "a\x00", "\x1f", "\ud800"])
def test_what_no_name_begins_with_is_no_prefix(prefix: object) -> None:
    with pytest.raises(InvalidNameError):
        check_prefix(prefix)


@pytest.mark.parametrize(
    ("name", "above"),
    [("a", ()), ("a/b", ("a",)), ("a/b/c", ("a", "a/b")), ("a.b/c", ("a.b",))],
)
def test_ancestors_are_the_names_above_outermost_first(name: str, above: tuple[str, ...]) -> None:
    assert ancestors(name) == above


@given(HOSTILE)
def test_ancestors_of_a_name_are_names(name: str) -> None:
    try:
        check_name(name)
    except InvalidNameError:
        return
    for ancestor in ancestors(name):
        assert check_name(ancestor) == ancestor
        assert name.startswith(f"{ancestor}/")


def escaped(value: str) -> str | None:
    try:
        return escape_field(value)
    except InvalidNameError:
        return None


@settings(max_examples=1_000)
@given(HOSTILE, HOSTILE)
@example("", "%")
@example(".", "%2E")
@example("..", "%2E%2E")
@example("a/b", "a%2Fb")
def test_two_values_never_give_one_name(one: str, other: str) -> None:
    if one != other and escaped(one) is not None:
        assert escaped(one) != escaped(other)


@settings(max_examples=1_000)
@given(HOSTILE)
def test_a_field_is_always_one_segment(value: str) -> None:
    """Whatever an argument contains, it cannot reach another level or another name."""
    text = escaped(value)
    if text is not None and len(text.encode()) < NAME_BYTES_MAX:
        assert check_name(text) == text
        assert "/" not in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        ("plain text", "plain text"),
        ("2024-05-01", "2024-05-01"),
        ("a/b", "a%2Fb"),
        ("100%", "100%25"),
        ("", "%"),
        ("..", "%2E%2E"),
        ("\n", "%0A"),
        ("\u2028", "%E2%80%A8"),
    ],
)
def test_a_field_reads_as_plainly_as_it_can(value: object, text: str) -> None:
    assert escape_field(value) == text


def test_a_value_that_is_not_nfc_is_refused() -> None:
    """Normalizing it silently would give two values one name."""
    with pytest.raises(InvalidNameError, match="NFC"):
        escape_field("e\u0301")
