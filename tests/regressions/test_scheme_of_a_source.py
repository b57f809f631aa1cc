"""Events and metrics name the kind of store: `zk` and `zookeepers` were kinds of their own."""

from __future__ import annotations

from lockfast.flow.emitter import _kind_of
from lockfast.stores.registry import _BUILT_IN


def test_every_scheme_has_the_name_of_its_store() -> None:
    names = {"lockserver": "http"}
    for scheme, opener in _BUILT_IN.items():
        _, _, store = opener.partition(":")[0].partition("lockfast.stores.")
        package = store.partition(".")[0]
        if package:
            assert _kind_of(f"{scheme}://host") == names.get(package, package), scheme
