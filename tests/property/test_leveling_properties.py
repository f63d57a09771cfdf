"""Quotas for any speeds: within their bounds, in the order of speed, all done together, and still."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from headrace.flow.leveling import Leveling

STEPS = st.integers(1, 2048)
SHARES = st.floats(0.001, 1.0)
SPEEDS = st.lists(st.floats(1.0, 1000.0), min_size=1, max_size=12)


def level(steps: int, min_share: float, speeds: list[float], fragments: int = 20) -> Leveling:
    leveling = Leveling(fragment_steps=steps, min_share=min_share)
    for stream in range(len(speeds)):
        leveling.join(stream)
    for _ in range(fragments):
        for stream, speed in enumerate(speeds):
            leveling.observe(stream, speed)
    return leveling


@given(STEPS, SHARES, st.lists(st.tuples(st.integers(0, 4), st.floats(0.0, 1e9)), max_size=200))
def test_quotas_never_leave_their_bounds(steps: int, share: float, seen: list[tuple[int, float]]) -> None:
    leveling = level(steps, share, [1.0] * 5, fragments=0)
    for stream, speed in seen:
        leveling.observe(stream, speed)
        assert max(1, share * steps) <= leveling.steps(stream) <= steps


@given(STEPS, SHARES, SPEEDS)
def test_a_faster_sampler_never_makes_less(steps: int, share: float, speeds: list[float]) -> None:
    leveling = level(steps, share, sorted(speeds))
    quotas = [leveling.steps(stream) for stream in range(len(speeds))]
    # What is about right stays as it is: one in between may be up to a tenth off.
    assert all(later >= 0.9 * earlier - 1 for earlier, later in itertools.pairwise(quotas))


@given(STEPS, SPEEDS)
def test_nobody_holds_up_the_one_in_the_middle(steps: int, speeds: list[float]) -> None:
    share = 1e-6
    leveling = level(steps, share, speeds)
    middle = sorted(speeds)[len(speeds) // 2]
    for stream, speed in enumerate(speeds):
        quota = leveling.steps(stream)
        assert quota == 1 or quota / speed <= steps / middle / 0.95 * (1 + 1e-9)
        assert quota == steps or (quota + 1) / speed >= steps / middle / 1.1 * (1 - 1e-9)


@given(
    st.integers(64, 2048), st.lists(st.floats(20.0, 1000.0), min_size=1, max_size=8), st.integers(0, 2**32)
)
def test_noise_moves_no_quota_once_it_is_found(steps: int, speeds: list[float], seed: int) -> None:
    rng = random.Random(seed)
    leveling = level(steps, 0.001, speeds, fragments=0)
    changes = 0
    for fragment in range(200):
        for stream, speed in enumerate(speeds):
            changed = leveling.observe(stream, speed * rng.uniform(0.99, 1.01)) is not None
            changes += changed and fragment >= 60
    # The one way to change later is a quota at the very edge of what is about right.
    assert changes <= len(speeds)


@given(SPEEDS, st.randoms(use_true_random=False))
def test_the_pace_is_the_middle_of_who_is_there(speeds: list[float], rng: random.Random) -> None:
    leveling = level(128, 0.1, speeds)
    left = list(enumerate(speeds))
    rng.shuffle(left)
    while left:
        assert leveling.pace == sorted(speed for _, speed in left)[len(left) // 2]
        leveling.leave(left.pop()[0])
    assert leveling.pace == 0.0
