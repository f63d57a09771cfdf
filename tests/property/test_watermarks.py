"""Watermarks: throttling begins at the high mark, ends below the release line, and doesn't flutter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.flow.watermarks import Watermarks

fills = st.lists(st.floats(0, 1), max_size=60)


@given(fills)
def test_throttles_exactly_between_the_high_mark_and_the_release_line(trail: list[float]) -> None:
    marks = Watermarks(0.8, 0.2)
    expected = False
    for fill in trail:
        if fill >= 0.8:
            expected = True
        elif fill < marks.release:
            expected = False
        assert marks.update(fill) is expected


@given(fills)
def test_two_entries_have_a_fill_below_the_release_line_between_them(trail: list[float]) -> None:
    marks = Watermarks(0.8, 0.2)
    lowest, entries = 0.0, 0
    for fill in trail:
        marks.update(fill)
        lowest = min(lowest, fill)
        if marks.entries > entries:
            assert lowest < marks.release
            lowest, entries = 1.0, marks.entries


@pytest.mark.parametrize(("high", "low"), [(0.2, 0.8), (0.5, 0.5), (1.2, 0.1), (0.8, -0.1)])
def test_refuses_marks_in_the_wrong_order_or_outside(high: float, low: float) -> None:
    with pytest.raises(ValueError, match="low watermark"):
        Watermarks(high, low)
