"""The palette: text is readable, and colours differ for every kind of colour vision."""

from __future__ import annotations

import re
from itertools import combinations
from math import dist

import pytest

from lockfast.drawing.page import style
from lockfast.drawing.shapes import SERIES

Rgb = tuple[float, float, float]
Matrix = tuple[Rgb, Rgb, Rgb]

VISIONS: dict[str, Matrix] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    # Machado, Oliveira and Fernandes (2009), complete dichromacy, on linear RGB.
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
APART = 15.0
"""The least distance in CIELAB; 2.3 is just noticeable side by side."""
SCHEMES = ("light", "dark")


def palette(scheme: str) -> dict[str, Rgb]:
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", style())
    return {name: _linear(light if scheme == "light" else dark) for name, light, dark in found}


def _linear(code: str) -> Rgb:
    values = (int(code[at : at + 2], 16) / 255 for at in (1, 3, 5))
    r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return r, g, b


def _luminance(colour: Rgb) -> float:
    return 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]


def contrast(one: Rgb, other: Rgb) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def seen(colour: Rgb, vision: str) -> Rgb:
    r, g, b = (
        min(1.0, max(0.0, sum(a * c for a, c in zip(row, colour, strict=True))))
        for row in VISIONS[vision]
    )
    return r, g, b


def lab(colour: Rgb) -> Rgb:
    r, g, b = colour
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_can_be_read(scheme: str) -> None:
    """WCAG AA asks for 4.5 : 1."""
    colours = palette(scheme)
    assert {"ink", "dim", "accent", "bad", "good", "warn"} <= set(colours)
    for name in ("ink", "dim", "accent", "bad", "good", "warn"):
        for ground in ("paper", "raised"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for name in ("bad", "good", "warn"):
        assert contrast(colours[name], colours[f"{name}-soft"]) >= 4.5, name
        assert contrast(colours["ink"], colours[f"{name}-soft"]) >= 4.5, name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_shapes_stand_out_from_the_paper(scheme: str) -> None:
    colours = palette(scheme)
    for name in (*(f"s{at}" for at in range(SERIES)), "bad", "good", "warn"):
        assert contrast(colours[name], colours["paper"]) >= 2.1, name


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_colours_differ_for_every_kind_of_vision(scheme: str, vision: str) -> None:
    colours = palette(scheme)
    series = [f"s{at}" for at in range(SERIES)]
    assert f"s{SERIES}" not in colours
    for one, other in [*combinations(series, 2), ("good", "bad"), *((s, "bad") for s in series)]:
        apart = dist(lab(seen(colours[one], vision)), lab(seen(colours[other], vision)))
        assert apart >= APART, f"{one} and {other} look alike ({apart:.1f})"
