"""The labels of a time axis."""

from __future__ import annotations

import re

import pytest

from lockfast.drawing.shapes import Scale, time_axis, until_now


@pytest.mark.parametrize("per_second", [1.0, 1000.0])
@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0.01, ["now", "−2 ms", "−4 ms", "−6 ms", "−8 ms", "−10 ms"]),
        (60, ["now", "−10 s", "−20 s", "−30 s", "−40 s", "−50 s", "−60 s"]),
        (230, ["now", "−30 s", "−60 s", "−90 s", "−2 min", "−2.5 min", "−3 min", "−3.5 min"]),
        (3600, ["now", "−10 min", "−20 min", "−30 min", "−40 min", "−50 min", "−60 min"]),
        (10 * 3600, ["now", "−2 h", "−4 h", "−6 h", "−8 h", "−10 h"]),
    ],
)
def test_labels_are_round(seconds: float, labels: list[str], per_second: float) -> None:
    """Lines are a round number of seconds, minutes or hours apart, in any unit of time."""
    scale = Scale(0, seconds * per_second, 0, 700)
    drawn = "".join(time_axis(scale, 0, 100, per_second, until_now))
    assert re.findall(r"<text[^>]*>([^<]*)</text>", drawn) == labels
