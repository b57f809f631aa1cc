"""The keys and channels of a majority's nodes in Redis."""

from __future__ import annotations

from lockfast.stores.quorum.codec import inbox_of, keys_of


def test_every_session_of_every_namespace_has_its_own_channel() -> None:
    """Else a release would wake the sessions of others."""
    channels = {inbox_of(namespace, session) for namespace in "ab" for session in ("s1", "s2")}
    assert len(channels) == 4


def test_the_keys_and_channels_of_a_namespace_are_in_one_slot_of_a_cluster() -> None:
    names = [*keys_of("a"), inbox_of("a", "s1")]
    assert {name[: name.index("}") + 1] for name in names} == {"{lockfast-quorum:a}"}
