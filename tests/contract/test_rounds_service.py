"""Rounds over a real channel: what becomes of the contributions of several learners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from joining import FIRST, LAYOUT, PARAMETERS, START, Together, round_settings, together, values_of
from paramserving import PATIENCE_S, eventually, make_account

from headrace.config.choices import on_policy
from headrace.rl.learnable import Learnable
from headrace.rl.optimizers import make_optimizer
from headrace.sync.aggregation import FlatArray
from headrace.sync.contribution import DELTA, Work
from headrace.types import PolicyVersion

RNG = np.random.default_rng(7)


def some_vector() -> FlatArray:
    return RNG.standard_normal(LAYOUT.size).astype(np.float32)


def stepped(run: Together, gradient: FlatArray, learning_rate: float) -> FlatArray:
    """START after one step along a gradient by the run's own optimizer."""
    import torch

    algorithm = on_policy(run.settings.config)
    values, gradients = torch.tensor(START), torch.tensor(gradient)
    learnable = Learnable(
        gradients, make_optimizer(algorithm, values, gradients), max_norm=algorithm.max_grad_norm
    )
    learnable.step(learning_rate, rows=1)
    result: FlatArray = values.numpy()
    return result


def test_in_sync_the_version_is_the_mean_by_samples_and_all_are_told_the_same_bits(tmp_path: Path) -> None:
    with together(round_settings(tmp_path)) as run:
        first, second = run.join(0), run.join(1)
        vectors = some_vector(), some_vector()
        waiting = run.begin(first, first.contribution(vectors[0], num_samples=300))
        assert run.server.core.status().version == FIRST
        result = second.bring(second.contribution(vectors[1], num_samples=100))
        other = waiting.result(PATIENCE_S)
        exact = START.astype(np.float64) + 0.75 * (vectors[0] - START) + 0.25 * (vectors[1] - START)
        assert result.values is not None
        assert other.values is not None
        np.testing.assert_allclose(result.values, exact, rtol=1e-5, atol=1e-6)
        assert result.values.tobytes() == other.values.tobytes() == values_of(run.newest()).tobytes()
        assert (
            (result.version, result.outcome)
            == (other.version, other.outcome)
            == (PolicyVersion(1, 1), "applied")
        )


def test_gradients_are_stepped_along_once_by_their_mean(tmp_path: Path) -> None:
    with together(round_settings(tmp_path, algorithm="a2c")) as run:
        first, second = run.join(0), run.join(1)
        gradients = some_vector(), some_vector()
        common: dict[str, Any] = {"kind": "gradient", "learning_rate": 0.01}
        waiting = run.begin(first, first.contribution(gradients[0], num_samples=1, **common))
        result = second.bring(second.contribution(gradients[1], num_samples=3, **common))
        expected = stepped(run, 0.25 * gradients[0] + 0.75 * gradients[1], 0.01)
        assert result.values is not None
        np.testing.assert_allclose(result.values, expected, rtol=1e-5, atol=1e-7)
        assert np.abs(result.values - START).max() > 1e-3
        assert waiting.result(PATIENCE_S).version == result.version


def test_one_learner_alone_gets_its_values_back_as_they_are_and_is_not_sent_them_when_it_joins(
    tmp_path: Path,
) -> None:
    with together(round_settings(tmp_path, learners=1)) as run:
        member = run.connect(0)
        assert member.join().values is None
        vector = some_vector()
        result = member.bring(member.contribution(vector, num_samples=5))
        assert result.values is not None
        assert result.values.tobytes() == vector.tobytes()


def contribute_alike(run: Together, rounds: int) -> list[bytes]:
    """The versions that come of the same contributions of two learners, always in the same order."""
    rng = np.random.default_rng(3)
    first, second = run.join(0), run.join(1)
    versions = []
    for number in range(rounds):
        vectors = rng.standard_normal((2, LAYOUT.size)).astype(np.float32)
        waiting = run.begin(first, first.contribution(vectors[0], num_samples=number + 1))
        second.bring(second.contribution(vectors[1], num_samples=2))
        waiting.result(PATIENCE_S)
        versions.append(values_of(run.newest()).tobytes())
    return versions


def test_soft_sync_without_a_window_is_sync_bit_for_bit(tmp_path: Path) -> None:
    versions = []
    for mode in ("sync", "soft_sync"):
        folder = tmp_path / mode
        folder.mkdir()
        with together(round_settings(folder, mode=mode, window_s=None)) as run:
            versions.append(contribute_alike(run, rounds=5))
    assert versions[0] == versions[1]
    assert len(set(versions[0])) == 5


def test_async_with_one_learner_is_sync_with_one_bit_for_bit(tmp_path: Path) -> None:
    versions = []
    for mode in ("sync", "async"):
        folder, rng = tmp_path / mode, np.random.default_rng(3)
        folder.mkdir()
        with together(round_settings(folder, learners=1, algorithm="a2c", mode=mode)) as run:
            member = run.join(0)
            for _ in range(5):
                vector = rng.standard_normal(LAYOUT.size).astype(np.float32)
                member.bring(member.contribution(vector, kind="gradient", learning_rate=0.01))
            versions.append((str(member.version), values_of(run.newest()).tobytes()))
    assert versions[0] == versions[1]


def test_a_learner_that_leaves_in_the_middle_takes_its_work_with_it_and_the_other_is_answered(
    tmp_path: Path,
) -> None:
    with together(round_settings(tmp_path)) as run:
        first, second, third = run.join(0), run.join(1), run.join(2)
        vector = some_vector()
        run.begin(first, first.contribution(some_vector(), work=Work(env_steps=1000)))
        first.client.close()
        eventually(lambda: run.metric("learners") == 2, "the first one has left")
        waiting = run.begin(second, second.contribution(vector, work=Work(env_steps=64)))
        third.client.close()
        result = waiting.result(PATIENCE_S)
        assert result.values is not None
        assert result.values.tobytes() == vector.tobytes()
        assert result.report.env_steps == 64


def test_a_window_closes_a_round_without_the_others(tmp_path: Path) -> None:
    with together(round_settings(tmp_path, mode="soft_sync", window_s=0.01)) as run:
        first, _second = run.join(0), run.join(1)
        assert first.bring(first.contribution(some_vector())).version == PolicyVersion(1, 1)
        assert run.metric("rounds_total", closed_by="window") == 1


def test_a_deadline_closes_a_round_without_a_learner_that_never_came(tmp_path: Path) -> None:
    with together(round_settings(tmp_path, straggler_deadline_s=0.01)) as run:
        member = run.join(0)
        for _ in range(2):
            member.bring(member.contribution(some_vector()))
        assert run.metric("rounds_total", closed_by="deadline") == 1
        assert run.metric("rounds_total", closed_by="complete") == 1


@pytest.mark.parametrize(
    ("lag", "outcome"), [(2, "late"), (3, "down_weighted"), (4, "down_weighted"), (5, "stale")]
)
def test_a_lag_of_max_lag_still_counts_and_one_more_is_stale(tmp_path: Path, lag: int, outcome: str) -> None:
    settings = round_settings(tmp_path, algorithm="a2c", mode="async", full_weight_lag=2, max_lag=4)
    with together(settings) as run:
        slow, fast = run.join(0), run.join(1)
        gradient = np.ones(LAYOUT.size, np.float32)
        common: dict[str, Any] = {"kind": "gradient", "learning_rate": 0.01}
        old = slow.contribution(gradient, **common)
        for _ in range(lag):
            fast.bring(fast.contribution(gradient, **common))
        before = values_of(run.newest())
        result = slow.bring(old)
        assert (result.outcome, result.lag) == (outcome, lag)
        moved = values_of(run.newest()).tobytes() != before.tobytes()
        assert moved == (outcome != "stale")
        assert run.metric("gradients_total", outcome=outcome) == 1


def test_a_lone_contribution_that_is_old_makes_a_shorter_step(tmp_path: Path) -> None:
    settings = round_settings(
        tmp_path, mode="async", full_weight_lag=0, max_lag=8, staleness_weight="inverse"
    )
    with together(settings) as run:
        slow, fast = run.join(0), run.join(1)
        old = slow.contribution(START + 1)
        for _ in range(3):
            fast.bring(fast.contribution(START))
        np.testing.assert_allclose(values_of(run.newest()), START, atol=1e-6)
        result = slow.bring(old)
        assert result.values is not None
        np.testing.assert_allclose(result.values, START + 0.25, atol=1e-6)


def test_a_stale_learner_is_given_the_newest_version_and_goes_on_from_it(tmp_path: Path) -> None:
    with together(round_settings(tmp_path, mode="async", max_lag=0, full_weight_lag=0)) as run:
        slow, fast = run.join(0), run.join(1)
        old = slow.contribution(some_vector())
        newest = fast.bring(fast.contribution(some_vector()))
        result = slow.bring(old)
        assert (result.outcome, result.version) == ("stale", newest.version)
        assert result.values is not None
        assert newest.values is not None
        assert result.values.tobytes() == newest.values.tobytes()
        assert "resample" in result.detail
        assert slow.bring(slow.contribution(some_vector())).outcome == "applied"


def test_what_is_stale_counts_for_nothing(tmp_path: Path) -> None:
    with together(round_settings(tmp_path, mode="async", max_lag=0, full_weight_lag=0)) as run:
        slow, fast = run.join(0), run.join(1)
        work = Work(env_steps=64, episodes=1, returns=(5.0,))
        account = make_account("sampler-0", settled=3, trained=64)
        old = slow.contribution(some_vector(), work=work, accounts=(account,))
        fast.bring(fast.contribution(some_vector()))
        assert slow.bring(old).outcome == "stale"
        newest = run.newest()
        assert newest.accounts == ()
        assert (newest.report.env_steps, newest.report.episodes, newest.report.updates) == (0, 0, 1)


def test_accounts_of_all_learners_are_merged_and_none_falls(tmp_path: Path) -> None:
    with together(round_settings(tmp_path)) as run:
        first, second = run.join(0), run.join(1)
        newer = {name: make_account(name, settled=9, trained=100) for name in ("sampler-0", "sampler-1")}
        older = {name: make_account(name, settled=2, trained=10) for name in ("sampler-0", "sampler-1")}
        # Each knows only an old state of the samplers of the other.
        mine = (newer["sampler-0"], older["sampler-1"])
        theirs = (older["sampler-0"], newer["sampler-1"], make_account("sampler-2", settled=1, stale=8))
        waiting = run.begin(first, first.contribution(some_vector(), accounts=mine))
        second.bring(second.contribution(some_vector(), accounts=theirs))
        waiting.result(PATIENCE_S)
        accounts = {account.sampler.sampler_id: account for account in run.newest().accounts}
        assert accounts == {**newer, "sampler-2": theirs[2]}
        waiting = run.begin(first, first.contribution(some_vector(), accounts=tuple(older.values())))
        second.bring(second.contribution(some_vector()))
        waiting.result(PATIENCE_S)
        assert {account.sampler.sampler_id: account for account in run.newest().accounts} == accounts


def test_reports_add_up_over_learners_and_rounds(tmp_path: Path) -> None:
    with together(round_settings(tmp_path)) as run:
        first, second = run.join(0), run.join(1)
        mine = Work(
            env_steps=64,
            samples_trained=128,
            episodes=2,
            returns=(1.0, 2.0),
            metrics={"loss": 1.0, "own": 5.0},
        )
        theirs = Work(
            env_steps=32,
            samples_trained=64,
            episodes=1,
            returns=(6.0,),
            metrics={"loss": 4.0},
            policy_lags=(3,),
        )
        for _ in range(2):
            waiting = run.begin(first, first.contribution(some_vector(), num_samples=2, work=mine))
            result = second.bring(second.contribution(some_vector(), num_samples=1, work=theirs))
            waiting.result(PATIENCE_S)
        report = run.newest().report
        assert report == result.report
        assert (report.env_steps, report.samples_trained, report.episodes, report.updates) == (192, 384, 6, 2)
        assert report.episode_return_mean == 3.0
        assert report.metrics == {"loss": 2.0, "own": 5.0, "contributions": 2.0}
        assert report.policy_lags == (3,)


def test_what_counts_the_whole_run_is_not_added_up(tmp_path: Path) -> None:
    with together(round_settings(tmp_path)) as run:
        first, second = run.join(0), run.join(1)
        for seen in ((1000, 1001), (1500, 1499)):
            works = [
                Work(
                    env_steps=steps,
                    samples_trained=10,
                    episodes=steps,
                    returns=(float(steps),),
                    counts_whole_run=True,
                )
                for steps in seen
            ]
            waiting = run.begin(first, first.contribution(some_vector(), work=works[0]))
            second.bring(second.contribution(some_vector(), work=works[1]))
            waiting.result(PATIENCE_S)
        report = run.newest().report
        assert (report.env_steps, report.episodes, report.samples_trained) == (1500, 1500, 40)
        assert report.episode_return_mean == 1500.0


def test_running_moments_of_all_learners_are_merged_and_other_state_is_taken_over(tmp_path: Path) -> None:
    with together(round_settings(tmp_path)) as run:
        first, second = run.join(0), run.join(1)
        rows = RNG.standard_normal((10, 3)) * 3 + 1

        def state(own: np.ndarray, epsilon: float) -> dict[str, np.ndarray]:
            return {
                f"{DELTA}normalizer//count": np.array(float(len(own))),
                f"{DELTA}normalizer//mean": own.mean(0),
                f"{DELTA}normalizer//m2": np.square(own - own.mean(0)).sum(0),
                "exploration/epsilon": np.array(epsilon, np.float32),
            }

        waiting = run.begin(first, first.contribution(some_vector(), state=state(rows[:7], 0.5)))
        result = second.bring(second.contribution(some_vector(), state=state(rows[7:], 0.5)))
        waiting.result(PATIENCE_S)
        acting = run.newest().snapshot.parameters
        assert acting.keys() == PARAMETERS.keys()
        assert acting["normalizer//count"] == 10
        np.testing.assert_allclose(acting["normalizer//mean"], rows.mean(0))
        np.testing.assert_allclose(acting["normalizer//m2"], np.square(rows - rows.mean(0)).sum(0))
        assert acting["exploration/epsilon"] == 0.5
        assert result.state is not None
        assert result.state.keys() == PARAMETERS.keys() - set(LAYOUT.names)


def test_contributions_in_16_bits_are_changes_of_what_the_learner_was_given(tmp_path: Path) -> None:
    with together(round_settings(tmp_path, learners=1, transport_dtype="bfloat16")) as run:
        member = run.join(0, vector_type="bfloat16")
        change = np.full(LAYOUT.size, 2.0**-9, np.float32)  # lost in 16 bits beside values of about 1
        for _ in range(4):
            result = member.bring(member.contribution(change, kind="change"))
        assert result.values is not None
        np.testing.assert_array_equal(result.values, START + 4 * change)


def test_metrics_count_what_happened(tmp_path: Path) -> None:
    settings = round_settings(tmp_path, mode="async", full_weight_lag=0, max_lag=1)
    with together(settings) as run:
        slow, fast = run.join(0), run.join(1)
        old = slow.contribution(START)
        fast.bring(fast.contribution(START))
        assert slow.bring(old).outcome == "down_weighted"
        old = fast.contribution(START)  # fast has 1.1, the newest is 1.2
        slow.bring(slow.contribution(START))
        assert fast.bring(old).outcome == "stale"
        bad = slow.contribution(np.full(LAYOUT.size, np.nan, np.float32))
        assert slow.bring(bad).outcome == "invalid"
        outcomes = {
            name: run.metric("gradients_total", outcome=name)
            for name in ("applied", "down_weighted", "stale", "invalid", "late")
        }
        assert outcomes == {"applied": 2, "down_weighted": 1, "stale": 1, "invalid": 1, "late": 0}
        assert run.metric("gradient_lag_count") == 5
        assert run.metric("gradient_lag_sum") == 0 + 1 + 0 + 2 + 0
        assert run.metric("rounds_total", closed_by="complete") == 3
        assert run.metric("learners") == 2
        slow.client.close()
        eventually(lambda: run.metric("learners") == 1, "a learner that left is not counted")


def test_a_round_is_closed_when_the_run_has_ended(tmp_path: Path) -> None:
    with together(round_settings(tmp_path)) as run:
        first, _second = run.join(0), run.join(1)
        waiting = run.begin(first, first.contribution(some_vector()))
        run.server.core.stop("interrupted", "somebody asked for it")
        result = waiting.result(PATIENCE_S)
        assert result.status.ended
        assert (result.outcome, result.version) == ("applied", PolicyVersion(1, 1))
        assert run.metric("rounds_total", closed_by="ended") == 1
