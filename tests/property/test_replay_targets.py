"""What is drawn has the target that its episode says, however it ended and however it was cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import Stream, eventful_stream

from headrace.config.sections import ReplayConfig
from headrace.replay.rows import RowBlock
from headrace.replay.shard import HotShard, bytes_per_chunk
from headrace.types import Array, Columns, Fragment

GAMMA = 0.9


@st.composite
def cuts(draw: st.DrawFn) -> dict[str, Any]:
    """Fragments of eventful episodes, of which some are lost, and the steps of a target."""
    length, count = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    return {
        "length": length,
        "lanes": draw(st.integers(1, 3)),
        "n_step": draw(st.integers(1, length)),
        "lost": draw(st.sets(st.integers(0, count - 1), max_size=count - 1)),
        "count": count,
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


def made(case: dict[str, Any]) -> tuple[Stream, list[Fragment]]:
    length = case["length"]
    whole = eventful_stream(case["count"] * length, case["lanes"], seed=case["seed"], length=length)
    return whole, [f for f in whole.fragments(length) if f.id.sequence not in case["lost"]]


def check_targets(whole: Stream, case: dict[str, Any], steps: Array, lanes: Array, columns: Columns) -> None:
    missing = {sequence * case["length"] - 1 for sequence in case["lost"]}
    for i, (step, lane) in enumerate(zip(steps.tolist(), lanes.tolist(), strict=True)):
        total, discount, bootstrap = whole.target(step, lane, case["n_step"], GAMMA, missing)
        assert columns["observation"][i, 0] == whole.observation[step, lane]
        assert columns["n_step_return"][i] == pytest.approx(total, rel=1e-5, abs=1e-6)
        assert columns["discount"][i] == pytest.approx(discount, rel=1e-6)
        if discount:
            assert columns["next_observation"][i, 0] == bootstrap


def valid_of(whole: Stream) -> Array:
    assert whole.valid is not None
    return whole.valid


@settings(deadline=None)
@given(cuts())
def test_a_hot_shard_draws_every_transition_with_its_target(case: dict[str, Any]) -> None:
    whole, fragments = made(case)
    shard = HotShard(ReplayConfig(), n_step=case["n_step"], gamma=GAMMA, rng=np.random.default_rng(0))
    for fragment in fragments:
        shard.insert(fragment)
    shard.flush()
    here = [fragment.id.sequence for fragment in fragments]
    expected = int(np.count_nonzero(valid_of(whole).reshape(case["count"], -1)[here]))
    assert shard.stats().count == expected
    assert shard.stats().inserted == shard.stats().stored == expected
    drawn = shard.sample(500)
    assert (drawn is None) == (expected == 0)
    if drawn is not None:
        chunks, items = np.divmod(drawn.keys, case["length"] * case["lanes"])
        steps = np.array(here)[chunks] * case["length"] + items // case["lanes"]
        check_targets(whole, case, steps, items % case["lanes"], drawn.columns)


@settings(deadline=None)
@given(cuts(), st.sampled_from(["fifo", "lifo", "uniform", "prioritized"]), st.integers(1, 4))
def test_whatever_chunks_have_left_the_targets_of_the_rest_are_true(
    case: dict[str, Any], remover: Any, chunks: int
) -> None:
    """A chunk that leaves before the one whose targets reach into it cuts them at the edge, nothing else."""
    whole, fragments = made(case)
    replay = ReplayConfig(remover=remover, hot_capacity_bytes=2**16)
    replay = replay.model_copy(update={"hot_capacity_bytes": chunks * bytes_per_chunk(replay, fragments[0])})
    shard = HotShard(replay, n_step=case["n_step"], gamma=GAMMA, rng=np.random.default_rng(case["seed"]))
    here = {fragment.id.sequence for fragment in fragments}
    for fragment in fragments:
        here -= {evicted.fragment_id.sequence for evicted in shard.insert(fragment)}
    shard.flush()
    drawn = shard.sample(500)
    if drawn is not None:
        names = drawn.columns["observation"][:, 0].astype(int)
        steps, lanes = np.array([np.argwhere(whole.observation == name)[0] for name in names]).T
        assert {int(step) // case["length"] for step in steps} <= here
        lost = set(range(case["count"])) - here
        check_targets(whole, {**case, "lost": lost}, steps, lanes, drawn.columns)


@settings(deadline=None)
@given(cuts(), st.randoms(use_true_random=False))
def test_a_stack_of_decoded_chunks_in_any_order_gives_the_same_targets(
    case: dict[str, Any], random: Any
) -> None:
    whole, fragments = made(case)
    random.shuffle(fragments)
    place = {fragment.id.sequence: index for index, fragment in enumerate(fragments)}
    successor = np.array([place.get(fragment.id.sequence + 1, -1) for fragment in fragments])
    block = RowBlock.stack(fragments, successor)
    steps, lanes = np.nonzero(valid_of(whole))
    there = np.isin(steps // case["length"], list(place))
    steps, lanes = steps[there], lanes[there]
    slots = np.array([place[step // case["length"]] for step in steps], np.int64)
    items = steps % case["length"] * case["lanes"] + lanes
    columns = block.gather(slots, items, n_step=case["n_step"], gamma=GAMMA)
    check_targets(whole, case, steps, lanes, columns)


@settings(deadline=None)
@given(cuts(), st.integers(2, 12), st.booleans())
def test_a_sequence_is_the_steps_of_one_episode_that_follow_each_other(
    case: dict[str, Any], length: int, cold: bool
) -> None:
    """Whatever its fragments are, and wherever it is read from; what is beyond its end is zero and masked."""
    whole, fragments = made(case)
    here = [fragment.id.sequence for fragment in fragments]
    if cold:
        place = {sequence: index for index, sequence in enumerate(here)}
        successor = np.array([place.get(sequence + 1, -1) for sequence in here])
        block = RowBlock.stack(fragments, successor)
        steps, lanes = np.nonzero(valid_of(whole))
        there = np.isin(steps // case["length"], here)
        steps, lanes = steps[there], lanes[there]
        slots = np.array([place[step // case["length"]] for step in steps], np.int64)
        items = steps % case["length"] * case["lanes"] + lanes
        columns = block.gather_sequences(slots, items, length=length, gamma=GAMMA)
    else:
        shard = HotShard(ReplayConfig(), n_step=1, gamma=GAMMA, rng=np.random.default_rng(0))
        for fragment in fragments:
            shard.insert(fragment)
        drawn = shard.sample(300, length)
        if drawn is None:
            return
        chunks, items = np.divmod(drawn.keys, case["length"] * case["lanes"])
        steps = np.array(here)[chunks] * case["length"] + items // case["lanes"]
        lanes, columns = items % case["lanes"], drawn.columns
    cuts = {sequence * case["length"] - 1 for sequence in case["lost"]}
    for index, (begin, lane) in enumerate(zip(steps.tolist(), lanes.tolist(), strict=True)):
        rows = whole.sequence(begin, lane, length, cuts)
        count = len(rows)
        assert columns["valid"][index].tolist() == [True] * count + [False] * (length - count)
        for name, source in (("reward", whole.reward), ("terminated", whole.terminated)):
            expected = [source[row, lane] for row in rows] + [0] * (length - count)
            assert columns[name][index].tolist() == expected
        seen = columns["observation"][index, :, 0].tolist()
        assert seen == [whole.observation[row, lane] for row in rows] + [0] * (length - count)
        last = rows[-1]
        terminated = bool(whole.terminated[last, lane])
        assert columns["discount"][index] == pytest.approx(0.0 if terminated else GAMMA)
        if not terminated:
            assert columns["next_observation"][index, 0] == whole.after[last, lane]


@settings(deadline=None)
@given(cuts())
def test_before_the_next_fragment_only_what_needs_it_waits(case: dict[str, Any]) -> None:
    """Whatever can be drawn already has its final target: it is the same after all fragments have come."""
    whole, fragments = made({**case, "lost": set()})
    shard = HotShard(ReplayConfig(), n_step=case["n_step"], gamma=GAMMA, rng=np.random.default_rng(0))
    for fragment in fragments:
        shard.insert(fragment)
        drawn = shard.sample(100)
        if drawn is not None:
            steps, lanes = np.divmod(drawn.keys, case["lanes"])
            check_targets(whole, {**case, "lost": set()}, steps, lanes, drawn.columns)
