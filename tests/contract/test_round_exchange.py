"""A learner's exchange with the rounds: after each it holds exactly the version that it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import environments
import learning
import numpy as np
import pytest
import replaying
from exchanging import RoundLearner, make_learned
from gymnasium import spaces
from paramserving import PATIENCE_S, make_account, make_settings, serving

from headrace.config.choices import is_off_policy
from headrace.config.sections import Config
from headrace.envs.spec import EnvironmentSpec
from headrace.nets.actor import make_actor
from headrace.rl.algorithm import Algorithm, ReplayAlgorithm, make_algorithm, make_replay_algorithm
from headrace.rl.batch import stack_fragments
from headrace.types import Array, PolicyVersion
from services.learner.exchanging import STALE_CONTRIBUTION, Learned
from services.paramserver.assembly import Paramserver
from services.paramserver.config import Settings

ON_POLICY = ("ppo", "a2c", "impala", "appo", "a3c")
OFF_POLICY = ("dqn", "ddpg", "td3", "sac")
BOX, CHOICE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)


def settings_of(name: str, run_dir: Path, *, seed: int = 1, **sync: Any) -> Settings:
    on_policy = name in ON_POLICY
    return make_settings(
        run_dir,
        run={"seed": seed, "stop": {"updates": 10**6}},
        policy={"hidden": [8, 8], "normalize_observation": on_policy},
        algorithm={"name": name, **({"normalize_value": True} if on_policy else {})},
        sync={"mode": "async", **sync},
    )


def spec_of(name: str) -> EnvironmentSpec:
    if name in ON_POLICY:
        return learning.case_spec("vector_discrete")
    return learning.make_spec(BOX, CHOICE if name == "dqn" else ACTIONS)


def make(settings: Settings) -> Any:
    config = settings.config
    maker = make_replay_algorithm if is_off_policy(config) else make_algorithm
    return maker(config, spec_of(config.algorithm.name))


def learn(config: Config, algorithm: Any, seed: int) -> Learned:
    """One real update on random experience."""
    name = config.algorithm.name
    if is_off_policy(config):
        replay: ReplayAlgorithm = algorithm
        batch = replaying.random_batch(BOX, CHOICE if name == "dqn" else ACTIONS, seed=seed)
        return make_learned(replay.learn(batch, env_steps=seed, progress=0.0).metrics)
    on_policy: Algorithm = algorithm
    actor = make_actor(config, spec_of(name))
    actor.load(on_policy.acting_parameters())
    space = environments.SPACES["vector_discrete"][0]
    fragment = learning.acted_fragment(actor, config, space, seed=seed)
    return make_learned(on_policy.update(stack_fragments([fragment]), progress=0.0))


def work_of(learner: RoundLearner, settings: Settings, seed: int, **fields: Any) -> Callable[[], Learned]:
    def work() -> Learned:
        learned = learn(settings.config, learner.algorithm, seed)
        return make_learned(dict(learned.losses), **fields)

    return work


def newest_of(server: Paramserver) -> tuple[PolicyVersion, dict[str, Array]]:
    record = server.core.fetch()
    assert record is not None
    return record.version, record.acting.decode()


def assert_same(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)


@pytest.mark.parametrize("transport", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [*ON_POLICY, *OFF_POLICY])
def test_after_each_exchange_the_learner_holds_the_version(name: str, transport: str, tmp_path: Path) -> None:
    settings = settings_of(name, tmp_path, transport_dtype=transport)
    with (
        serving(settings) as server,
        closing(RoundLearner(settings, server.server.address, make(settings))) as learner,
    ):
        _, first = newest_of(server)
        assert_same(learner.algorithm.acting_parameters(), first)
        for update in range(3):
            exchanged = learner.hand_in(work_of(learner, settings, seed=update))
            version, acting = newest_of(server)
            assert (exchanged.version, exchanged.dropped) == (version, "")
            assert version == PolicyVersion(1, update + 1)
            assert_same(learner.algorithm.acting_parameters(), acting)
        assert any(not np.array_equal(first[key], acting[key]) for key in first)


@pytest.mark.parametrize("name", ["a2c", "ppo", "sac"])
def test_a_learner_whose_work_is_stale_holds_the_version_of_the_others(name: str, tmp_path: Path) -> None:
    settings = settings_of(name, tmp_path, max_lag=0, full_weight_lag=0)
    with serving(settings) as server:
        address = server.server.address
        with (
            closing(RoundLearner(settings, address, make(settings))) as fast,
            closing(RoundLearner(settings, address, make(settings), index=1)) as slow,
        ):
            newest = fast.hand_in(work_of(fast, settings, seed=1))
            exchanged = slow.hand_in(work_of(slow, settings, seed=2))
            assert (exchanged.version, exchanged.dropped) == (newest.version, STALE_CONTRIBUTION)
            assert_same(slow.algorithm.acting_parameters(), newest_of(server)[1])
            assert slow.exchange.progress.env_steps == 64
            exchanged = slow.hand_in(work_of(slow, settings, seed=3))
            assert (exchanged.version, exchanged.dropped) == (PolicyVersion(1, 2), "")


@pytest.mark.parametrize("name", ["a2c", "ppo", "sac"])
def test_a_learner_that_joins_later_begins_with_the_newest_version_and_its_accounts(
    name: str, tmp_path: Path
) -> None:
    settings = settings_of(name, tmp_path)
    with serving(settings) as server:
        address, account = server.server.address, make_account("sampler-0", settled=3, trained=64)
        with closing(RoundLearner(settings, address, make(settings))) as first:
            first.hand_in(work_of(first, settings, seed=1, accounts=(account,)))
            other = make(settings_of(name, tmp_path, seed=99))
            with closing(RoundLearner(settings, address, other, index=1)) as second:
                version, acting = newest_of(server)
                assert second.exchange.version == version == PolicyVersion(1, 1)
                assert second.accounts == (account,)
                assert_same(other.acting_parameters(), acting)
                np.testing.assert_array_equal(other.shared.values(), first.algorithm.shared.values())


@pytest.mark.parametrize("name", ["a2c", "ppo"])
def test_learners_that_begin_with_one_state_do_not_draw_the_same_random_numbers(
    name: str, tmp_path: Path
) -> None:
    settings = settings_of(name, tmp_path)
    with serving(settings) as server:
        address = server.server.address
        with (
            closing(RoundLearner(settings, address, make(settings))) as first,
            closing(RoundLearner(settings, address, make(settings), index=1)) as second,
        ):
            states = [one.algorithm.training_state()["rng/state"] for one in (first, second)]
            assert not np.array_equal(*states)


@pytest.mark.parametrize("name", ["a2c", "ppo", "sac"])
def test_versions_that_the_server_has_lost_are_published_again_by_a_learner_that_holds_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(name, tmp_path)
    account = make_account("sampler-0", settled=1, trained=64)
    later = make_account("sampler-0", settled=3, trained=192)
    with serving(settings) as server:
        address = server.server.address
        learner = RoundLearner(settings, address, make(settings))
        learner.hand_in(work_of(learner, settings, seed=0, accounts=(account,)))
        server.core._checkpointer.request(server.core.fetch())  # type: ignore[arg-type]
        assert server.core.wait_saved(PATIENCE_S)
        monkeypatch.setattr(server.core._checkpointer, "request", lambda _record: None)  # it is killed
        learner.hand_in(work_of(learner, settings, seed=1))
        held = learner.algorithm.acting_parameters()
    for path in (tmp_path / "paramserver").glob("newest-*"):
        path.unlink()
    with serving(settings, address) as server, closing(learner):
        assert newest_version(server) == PolicyVersion(1, 1)
        exchanged = learner.hand_in(work_of(learner, settings, seed=2, accounts=(later,)))
        assert (exchanged.version, exchanged.dropped) == (PolicyVersion(2, 3), STALE_CONTRIBUTION)
        assert "version_republished" in learner.events
        record = server.core.fetch()
        assert record is not None
        assert_same(record.acting.decode(), held)
        assert_same(learner.algorithm.acting_parameters(), held)
        assert record.report.env_steps == 128
        assert record.accounts == (account,), "what was dropped has not entered the ledger"
        exchanged = learner.hand_in(work_of(learner, settings, seed=3, accounts=(later,)))
        assert (exchanged.version, exchanged.dropped) == (PolicyVersion(2, 4), "")
        record = server.core.fetch()
        assert record is not None
        assert (record.report.env_steps, record.accounts) == (192, (later,))


def newest_version(server: Paramserver) -> PolicyVersion:
    """As it was found, without giving lost versions up as a fetch would."""
    newest = server.core._versions.newest
    assert newest is not None
    return newest.version
