"""Actors: numpy and torch act alike, in the environment's own values and units."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import environments
import learning
import numpy as np
import pytest
from gymnasium import spaces

from headrace.config.sections import Config
from headrace.envs.spec import EnvironmentSpec
from headrace.errors import ConfigurationError
from headrace.nets.actions import ActionLayout
from headrace.nets.actor import Actor, NumpyActor, TorchActor, make_actor
from headrace.rl.algorithm import make_algorithm
from headrace.rl.normalizer import RunningMoments
from headrace.types import Array

FLAT_KINDS = [kind for kind in environments.SPACES if kind != "image_discrete"]


def trained_parameters(config: Config, spec: EnvironmentSpec) -> dict[str, Array]:
    """Parameters that are no longer the tiny initial ones."""
    rng = np.random.default_rng(0)
    parameters = make_algorithm(config, spec).acting_parameters()
    for name, array in parameters.items():
        if name.startswith("network/"):
            array += rng.standard_normal(array.shape).astype(np.float32) * np.float32(0.2)
        elif name.endswith(("mean", "m2")):
            array += rng.random(array.shape) * 100
        else:
            array += 100
    return parameters


def both_actors(config: Config, spec: EnvironmentSpec) -> tuple[Actor, Actor]:
    parameters = trained_parameters(config, spec)
    actors = NumpyActor(config, spec), TorchActor(config, spec)
    for actor in actors:
        actor.load(parameters)
    return actors


@pytest.mark.parametrize("kind", FLAT_KINDS)
@pytest.mark.parametrize(
    "options", [{}, {"normalize_observation": True}, {"activation": "relu", "hidden": [16]}]
)
def test_numpy_and_torch_agree_up_to_rounding(kind: str, options: dict[str, Any]) -> None:
    config = learning.make_config(policy=options, algorithm={"normalize_value": True, "reward_scale": 0.1})
    spec = learning.case_spec(kind)
    observation = learning.sample_leaves(environments.SPACES[kind][0], 32)
    numpy_actor, torch_actor = both_actors(config, spec)
    ours = numpy_actor.act(observation, np.random.default_rng(1))
    theirs = torch_actor.act(observation, np.random.default_rng(1))
    for path, action in ours.action.items():
        np.testing.assert_allclose(action, theirs.action[path], atol=1e-5)
        assert action.dtype == np.dtype(spec.action.leaf(path).dtype)
    np.testing.assert_allclose(ours.log_prob, theirs.log_prob, atol=1e-4)
    np.testing.assert_allclose(ours.value, theirs.value, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(numpy_actor.value(observation), ours.value, rtol=1e-5, atol=1e-4)
    for path, action in numpy_actor.greedy(observation).items():
        np.testing.assert_allclose(action, torch_actor.greedy(observation)[path], atol=1e-5)


@pytest.mark.parametrize("kind", environments.SPACES)
def test_actions_lie_in_the_action_space(kind: str) -> None:
    config, spec = learning.make_config(), learning.case_spec(kind)
    observation_space, action_space = environments.SPACES[kind]
    actor = make_actor(config, spec)
    actor.load(trained_parameters(config, spec))
    observation = learning.sample_leaves(observation_space, 8)
    chosen = actor.act(observation, np.random.default_rng(1)).environment_action
    for leaves in (chosen, actor.greedy(observation)):
        for lane in range(8):
            assert action_space.contains(
                spec.action.unflatten({path: leaf[lane] for path, leaf in leaves.items()})
            )


def test_same_generator_same_actions_and_other_generator_others() -> None:
    config, spec = learning.make_config(), learning.case_spec("nested")
    actor = make_actor(config, spec)
    actor.load(trained_parameters(config, spec))
    observation = learning.sample_leaves(environments.SPACES["nested"][0], 8)
    first, again, other = (actor.act(observation, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first.log_prob, again.log_prob)
    assert not np.array_equal(first.log_prob, other.log_prob)


def test_act_does_not_hand_out_buffers_that_the_next_act_overwrites() -> None:
    config, spec = learning.make_config(), learning.case_spec("vector_continuous")
    actor = make_actor(config, spec)
    actor.load(trained_parameters(config, spec))
    rng = np.random.default_rng(1)
    first, second = (
        learning.sample_leaves(environments.SPACES["vector_continuous"][0], 8, seed=seed) for seed in (0, 1)
    )
    acted = actor.act(first, rng)
    kept = acted.action[""].copy(), acted.log_prob.copy(), acted.value.copy()
    actor.act(second, rng)
    assert np.array_equal(kept[0], acted.action[""])
    assert np.array_equal(kept[1], acted.log_prob)
    assert np.array_equal(kept[2], acted.value)


def test_loaded_parameters_are_copied() -> None:
    config, spec = learning.make_config(), learning.case_spec("vector_discrete")
    parameters = trained_parameters(config, spec)
    actor = make_actor(config, spec)
    actor.load(parameters)
    observation = learning.sample_leaves(environments.SPACES["vector_discrete"][0], 8)
    before = actor.value(observation)
    for array in parameters.values():
        array[...] = 0
    assert np.array_equal(before, actor.value(observation))


def test_all_zero_parameters_act_uniformly_with_value_zero() -> None:
    config, spec = learning.make_config(), learning.case_spec("vector_discrete")
    actor = make_actor(config, spec)
    actor.load({name: np.zeros_like(array) for name, array in trained_parameters(config, spec).items()})
    observation = learning.sample_leaves(environments.SPACES["vector_discrete"][0], 300)
    acted = actor.act(observation, np.random.default_rng(0))
    np.testing.assert_allclose(acted.log_prob, np.log(1 / 3), rtol=1e-6)
    assert not acted.value.any()
    assert np.bincount(acted.action[""]).min() > 60


def test_categories_are_drawn_with_their_probabilities() -> None:
    layout = ActionLayout(learning.make_spec(spaces.Discrete(2), spaces.Discrete(4)).action)
    probabilities = np.array([0.5, 0.3, 0.2, 0.0])
    with np.errstate(divide="ignore"):
        logits = np.tile(np.log(probabilities), (20_000, 1)).astype(np.float32).T
    actions, log_prob = layout.sample(logits, np.empty(0, np.float32), np.random.default_rng(0))
    counts = np.bincount(actions[""], minlength=4)
    np.testing.assert_allclose(counts / 20_000, probabilities, atol=0.015)
    assert counts[3] == 0
    np.testing.assert_allclose(log_prob, np.log(probabilities[actions[""]]), rtol=1e-5)


def test_gaussian_actions_are_in_units_of_half_the_range() -> None:
    space = spaces.Box(np.array([-2, 10], np.float32), np.array([2, 30], np.float32))
    layout = ActionLayout(learning.make_spec(spaces.Discrete(2), space).action)
    outputs = np.zeros((2, 20_000), np.float32)
    actions, _ = layout.sample(outputs, np.full(2, np.log(0.5), np.float32), np.random.default_rng(0))
    np.testing.assert_allclose(actions[""].mean(0), [0, 20], atol=0.2)
    np.testing.assert_allclose(actions[""].std(0), [1, 5], rtol=0.03)
    np.testing.assert_allclose(layout.pack(actions).std(1), [0.5, 0.5], rtol=0.03)


def test_only_what_the_environment_gets_is_clipped() -> None:
    layout = ActionLayout(learning.make_spec(spaces.Discrete(2), spaces.Box(-2, 2, (1,), np.float32)).action)
    actions = layout.mode(np.array([[3.0, 0.5]], np.float32))
    assert actions[""].ravel().tolist() == [6.0, 1.0]
    assert layout.clip(actions)[""].ravel().tolist() == [2.0, 1.0]


def test_a_box_as_wide_as_its_dtype_is_unbounded() -> None:
    limit = float(np.finfo(np.float32).max)
    layout = ActionLayout(learning.make_spec(spaces.Discrete(2), spaces.Box(-limit, limit, (1,))).action)
    assert layout.mode(np.array([[0.5]], np.float32))[""].item() == 0.5


def test_values_are_in_units_of_reward() -> None:
    spec = learning.case_spec("vector_discrete")
    scaled = learning.make_config(algorithm={"normalize_value": True, "reward_scale": 0.5})
    parameters = trained_parameters(learning.make_config(), spec)
    moments = RunningMoments.of(np.array([0.0, 20.0]))  # mean 10, std 10
    observation = learning.sample_leaves(environments.SPACES["vector_discrete"][0], 4)
    plain, normalized = NumpyActor(learning.make_config(), spec), NumpyActor(scaled, spec)
    plain.load(parameters)
    normalized.load(parameters | moments.columns("value_normalizer"))
    np.testing.assert_allclose(
        normalized.value(observation), (plain.value(observation) * 10 + 10) / 0.5, rtol=1e-5
    )


def test_auto_takes_numpy_for_small_mlps_and_torch_for_images() -> None:
    config = learning.make_config()
    assert isinstance(make_actor(config, learning.case_spec("vector_discrete")), NumpyActor)
    assert isinstance(make_actor(config, learning.case_spec("image_discrete")), TorchActor)
    wide = learning.make_config(policy={"hidden": [1024]})
    assert isinstance(make_actor(wide, learning.case_spec("vector_discrete")), TorchActor)


def test_a_policy_that_needs_torch_is_refused_in_words_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigurationError) as refused:
        make_actor(learning.make_config(), learning.case_spec("image_discrete"))
    assert "sampler-torch" in str(refused.value)


def test_numpy_actor_for_images_is_refused_by_path() -> None:
    config = learning.make_config(sampler={"actor": "numpy"})
    with pytest.raises(ConfigurationError, match=r"^sampler\.actor: numpy"):
        make_actor(config, learning.case_spec("image_discrete"))


def test_a_numpy_actor_needs_no_torch() -> None:
    code = "import sys, headrace.nets.actor, headrace.rollout; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
