"""All pages take their colours and shapes from `lockfast.drawing`."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import lockfast
from lockfast import drawing
from lockfast.drawing.graph import Edge, Node, graph
from lockfast.drawing.timeline import Strip, timeline
from lockfast.playground.drawing import LEGEND
from lockfast.playground.drawing import timeline as scene_timeline
from lockfast.playground.scene import Scene

ROOT = Path(lockfast.__file__).parent
STYLE = Path(drawing.__file__).with_name("style.css")
DOM = ROOT / "server" / "dashboard" / "static" / "dom.js"
COLOUR = re.compile(r"#[0-9a-f]{6}\b|(?:rgb|hsl)a?\(\s*\d", re.IGNORECASE)
SHADOW = re.compile(r"rgb\(0 0 0 / [.\d]+\)")


def of_pages() -> list[Path]:
    found = [
        path
        for path in ROOT.rglob("*")
        if path.suffix in (".css", ".js", ".html", ".py") and "vendor" not in path.parts
    ]
    assert len([path for path in found if path.suffix == ".css"]) >= 3
    return [path for path in found if path != STYLE]


def test_only_the_style_sheet_of_the_drawings_has_colours() -> None:
    for path in of_pages():
        text = SHADOW.sub("", path.read_text(encoding="utf-8"))
        assert COLOUR.findall(text) == [], path


def test_every_colour_that_a_page_uses_is_in_the_palette() -> None:
    palette = set(re.findall(r"(--[\w-]+):", STYLE.read_text(encoding="utf-8")))
    assert {"--paper", "--ink", "--bad", "--s0", "--s5"} <= palette
    for path in of_pages():
        if path.suffix == ".css":
            text = path.read_text(encoding="utf-8")
            own = set(re.findall(r"(--[\w-]+):", text))
            assert set(re.findall(r"var\((--[\w-]+)", text)) <= palette | own, path


def test_the_dashboard_shows_drawings_as_they_are() -> None:
    """It rebuilds drawings from the elements and attributes that it knows."""
    text = DOM.read_text(encoding="utf-8")
    lists = re.findall(r"new Set\(\[(.*?)\]\)", text, re.DOTALL)
    elements, attributes = (set(re.findall(r'"([\w-]+)"', found)) for found in lists)
    nodes = [Node("a", "a", True, stuck=True, link="#/a", hint="h"), Node("b", "b", False)]
    strips = [Strip(0, 1, 2, 3, True, False, "h"), Strip(1, 1, None, 3, False, True, "h")]
    scene = Scene(2)
    scene.story.caption_s = 0.0
    scene.do("set", {"ttl": 2, "work": 0.1})
    scene.do("play", {})
    assert scene.wait_for(lambda: not scene.story.playing, 60)
    drawn = [
        graph(nodes, [Edge("b", "a", True, stuck=True, label="l", hint="h")], "label"),
        timeline("name", strips, 0, 4),
        scene_timeline(scene.record, tuple(scene.workers), scene.resources),
        *LEGEND.values(),
    ]
    scene.close()
    for markup in drawn:
        for element in ElementTree.fromstring(markup).iter():
            assert element.tag.partition("}")[2] in elements
            assert set(element.attrib) <= attributes | {"href"}, element.attrib
