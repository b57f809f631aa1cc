"""A lease on the node a/b/c was named "a, a/b, a/b/c", after everything it has claims on."""

from __future__ import annotations

import lockfast


def test_lease_has_the_name_of_its_node() -> None:
    with lockfast.connect("memory://name-of-a-tree-lease") as client:
        with client.tree("a/b/c").write() as lease:
            assert lease.name == "a/b/c"
        with client.all(client.tree("a/b").read(), client.tree("a/c").write()) as both:
            assert both.name == "a/b, a/c"
