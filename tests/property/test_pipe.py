"""The pipe as a whole under random delays and deaths: nothing twice, silent, too old or too much.

Each turn also checks the bytes; each published batch checks lags and duplicates (see the simulation).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipe_simulation import Pipe, make_config

NEVER_S = 1e9


@st.composite
def pipes(draw: st.DrawFn, *, lag_control: str, **fields: Any) -> Pipe:
    size = draw(st.integers(1, 4))
    speeds = draw(st.lists(st.sampled_from([1, 2, 5, 20]), min_size=1, max_size=5))
    tightest = max(8, 2 * size, size + len(speeds))
    config = make_config(
        batch_fragments=size,
        capacity_fragments=tightest + draw(st.sampled_from([0, 1, 3, 50])),
        sync__max_policy_lag=draw(st.integers(0, 3)),
        sync__lag_control=lag_control,
        **{"stream__straggler_deadline_s": NEVER_S, **fields},
    )
    return Pipe(
        config,
        speeds=speeds,
        seed=draw(st.integers(0, 2**32)),
        slow_push=draw(st.sampled_from([0.05, 0.3, 1.0])),
        compute_turns=draw(st.sampled_from([0, 3, 20])),
        prefetch=draw(st.integers(0, 2)),
    )


def run(pipe: Pipe, turns: int, *, faults: float = 0.0) -> None:
    for _ in range(turns):
        pipe.turn()
        if pipe.rng.random() < faults:
            sampler = pipe.rng.choice(pipe.samplers)
            fault = pipe.rng.choice(["sampler", "learner", "learner after publish", "link"])
            if fault == "sampler":
                pipe.kill_sampler(sampler)
            elif fault == "link":
                pipe.cut(sampler)
            else:
                pipe.kill_learner(after_publish=fault != "learner")
    assert all(lag <= pipe.config.sync.max_policy_lag for lag in pipe.store.trained.values())


def goes_on(pipe: Pipe) -> bool:
    """Whether it still trains, once faults have stopped and parameters arrive."""
    pipe.slow_push = 1.0
    version = pipe.store.version.number
    for _ in range(20_000):
        pipe.turn()
        if pipe.store.version.number >= version + 2:
            return True
    return False


def accounts_for_everything(pipe: Pipe) -> bool:
    live, over = pipe.ledger(run_over=False), pipe.ledger(run_over=True)
    assert live.problems == over.problems == ()
    made = {made.identity: made.sizes for made in (*pipe.samplers, *pipe.graves)}
    trained = sum(made[fragment.sampler][fragment.sequence] for fragment in pipe.store.trained)
    return trained == live.totals()["trained"] == over.totals()["trained"]


@settings(max_examples=40, deadline=None)
@given(pipes(lag_control="pace"))
def test_pacing_wastes_nothing_and_goes_on(pipe: Pipe) -> None:
    run(pipe, 800)
    assert accounts_for_everything(pipe)
    assert goes_on(pipe)
    assert pipe.intake.dropped == {}
    assert pipe.intake.duplicates == pipe.intake.gaps == 0


@settings(max_examples=40, deadline=None)
@given(pipes(lag_control="drop"))
def test_dropping_accounts_for_what_is_too_old_and_goes_on(pipe: Pipe) -> None:
    run(pipe, 800)
    assert accounts_for_everything(pipe)
    assert goes_on(pipe)
    assert set(pipe.intake.dropped) <= {"stale"}


@settings(max_examples=60, deadline=None)
@given(pipes(lag_control="pace"), st.sampled_from([0.005, 0.02]))
def test_paced_deaths_lose_nothing_silently_and_train_nothing_twice(pipe: Pipe, faults: float) -> None:
    run(pipe, 1000, faults=faults)
    assert accounts_for_everything(pipe)
    assert goes_on(pipe)
    assert set(pipe.ledger(run_over=True).totals()["lost"]) <= {"sampler_killed"}  # type: ignore[call-overload]
    assert pipe.intake.gaps == 0


@settings(max_examples=40, deadline=None)
@given(pipes(lag_control="drop"), st.sampled_from([0.005, 0.02]))
def test_unpaced_deaths_lose_nothing_silently_and_train_nothing_twice(pipe: Pipe, faults: float) -> None:
    run(pipe, 1000, faults=faults)
    assert accounts_for_everything(pipe)
    assert goes_on(pipe)


@settings(max_examples=25, deadline=None)
@given(pipes(lag_control="pace", stream__straggler_deadline_s=2.0), st.data())
def test_a_sampler_that_hangs_is_waited_for_only_so_long(pipe: Pipe, data: st.DataObject) -> None:
    run(pipe, 300)
    if len(pipe.samplers) > 1:
        pipe.silent.add(data.draw(st.sampled_from(pipe.samplers)).identity.sampler_id)
    assert goes_on(pipe)
    pipe.silent.clear()
    run(pipe, 300)
    assert accounts_for_everything(pipe)


@settings(max_examples=40, deadline=None)
@given(pipes(lag_control="pace", sampler__leveling="auto"), st.sampled_from([0.0, 0.01]))
def test_shorter_fragments_of_slow_samplers_are_accounted_for_like_any(pipe: Pipe, faults: float) -> None:
    run(pipe, 1000, faults=faults)
    assert accounts_for_everything(pipe)
    assert goes_on(pipe)
    assert pipe.intake.gaps == 0


@settings(max_examples=25, deadline=None)
@given(pipes(lag_control="pace", stream__batch_deadline_s=0.5))
def test_smaller_batches_keep_the_bound(pipe: Pipe) -> None:
    run(pipe, 800, faults=0.005)
    assert accounts_for_everything(pipe)
    assert goes_on(pipe)


@pytest.mark.parametrize("batch_fragments", [1, 2, 3])
@pytest.mark.parametrize("samplers", [1, 2, 3])
def test_tolerance_0_with_a_slow_parameter_push_still_makes_progress(
    batch_fragments: int, samplers: int
) -> None:
    config = make_config(
        batch_fragments=batch_fragments,
        sync__max_policy_lag=0,
        stream__straggler_deadline_s=NEVER_S,
    )
    pipe = Pipe(config, speeds=[1] * samplers, seed=1, slow_push=0.02)
    for _ in range(60_000):
        pipe.turn()
        if pipe.store.version.number >= 5:
            break
    assert pipe.store.version.number >= 5
    assert set(pipe.store.trained.values()) == {0}
    assert pipe.intake.dropped == {}


def test_a_slow_sampler_of_the_pipe_is_levelled_and_the_others_are_not() -> None:
    config = make_config(batch_fragments=3, sync__max_policy_lag=0, sampler__leveling="auto")
    pipe = Pipe(config, speeds=[4, 4, 16], seed=0, slow_push=1.0)
    run(pipe, 5000)
    assert [sampler.outbox.quota_steps for sampler in pipe.samplers] == [4, 4, 1]
    assert pipe.events["leveling"] == 1
