"""High and low water: when a receiver stops granting, when it goes on, and when it counts as nearly dry."""

from __future__ import annotations

from dataclasses import dataclass

_HYSTERESIS = 0.25  # of the distance between the marks: far enough apart that one fragment can't flip it


@dataclass(slots=True)
class Watermarks:
    """Throttles from the high mark until the fill has fallen below the release line.

    ``high``, ``low`` and every fill are shares of the capacity, 0 to 1. The release line lies a
    quarter of the way from high to low. Invariant: between two entries into throttling the fill was
    below the release line.
    """

    high: float
    low: float
    throttled: bool = False
    entries: int = 0
    """How often throttling began: frequent entries mean that the two sides are out of proportion."""

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise ValueError(
                f"the low watermark must lie below the high one: low {self.low}, high {self.high}"
            )

    @property
    def release(self) -> float:
        """Fill below which throttling ends."""
        return self.high - _HYSTERESIS * (self.high - self.low)

    def update(self, fill: float) -> bool:
        """Take note of a new fill; returns whether the receiver is throttled now."""
        if self.throttled:
            self.throttled = fill >= self.release
        elif fill >= self.high:
            self.throttled = True
            self.entries += 1
        return self.throttled

    def is_low(self, fill: float) -> bool:
        """Whether the fill is under the low mark."""
        return fill < self.low
