"""Lanes and rollout together: fragments hold exactly what was produced, and all are fit to train on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from lane_driver import actions_of, make_lanes

from headrace.config.sections import EnvironmentConfig, ValidationConfig
from headrace.envs.factory import probe
from headrace.envs.lanes import Lanes
from headrace.envs.validation import check_fragment
from headrace.nets.actor import ActionBatch
from headrace.rollout import Rollout
from headrace.types import Fragment, PolicyVersion, SamplerIdentity

Array = npt.NDArray[Any]


class ConstantActor:
    """Always the same action; the value of an observation is its second component."""

    def __init__(self, actions: dict[str, Array]) -> None:
        self._actions = actions

    def act(self, observation: dict[str, Array], rng: np.random.Generator) -> ActionBatch:
        num_lanes = len(next(iter(observation.values())))
        zeros = np.zeros(num_lanes, np.float32)
        return ActionBatch(
            action=self._actions,
            log_prob=zeros,
            value=self.value(observation),
            environment_action=self._actions,
        )

    def value(self, observation: dict[str, Array]) -> Array:
        return observation[""][:, 1].astype(np.float32)


def roll(
    config: EnvironmentConfig, *, num_lanes: int, length: int, fragments: int
) -> tuple[Rollout, Lanes, list[Fragment]]:
    spec = probe(config)
    lanes = make_lanes(config, num_lanes=num_lanes)
    actor: Any = ConstantActor(actions_of(spec, num_lanes))
    rollout = Rollout(
        lanes=lanes,
        actor=actor,
        spec=spec,
        sampler=SamplerIdentity("s", 0),
        fragment_length=length,
        config_digest="d",
        rng=np.random.default_rng(0),
        normalize_observation=False,
    )
    made = [rollout.run(PolicyVersion(1, 0)) for _ in range(fragments)]
    lanes.close()
    for fragment in made:
        assert fragment is not None
        assert check_fragment(fragment, spec, ValidationConfig()) is None
    return rollout, lanes, [fragment for fragment in made if fragment is not None]


def transitions(fragments: list[Fragment]) -> Counter[tuple[int, float, float]]:
    """(lane, episode, t) of every valid row; checks what follows each of them."""
    found: Counter[tuple[int, float, float]] = Counter()
    for fragment in fragments:
        columns = fragment.columns
        observation = columns["observation"]
        steps, lanes = columns["reward"].shape
        valid = columns.get("valid", np.ones((steps, lanes), bool))
        finals = dict(zip(columns["final_index"].tolist(), columns["final_observation"], strict=True))
        for t, lane in np.argwhere(valid):
            episode, step = observation[t, lane]
            after = finals.get(int(t * lanes + lane))
            if after is None:
                last = t == steps - 1
                after = columns["bootstrap_observation"][lane] if last else observation[t + 1, lane]
            assert after.tolist() == [episode, step + 1]
            found[int(lane), float(episode), float(step)] += 1
    return found


@pytest.mark.parametrize("length", [1, 7, 64])
@pytest.mark.parametrize("num_lanes", [1, 5])
@pytest.mark.parametrize("end", ["terminated", "truncated", "both", "mixed"])
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_what_is_in_fragments_is_what_was_produced(
    autoreset: str, end: str, num_lanes: int, length: int
) -> None:
    kwargs = {"env": "CountingEnv", "autoreset": autoreset, "end": end}
    config = EnvironmentConfig(id="vectors:make", vectorization="native", kwargs=kwargs)
    rollout, _, fragments = roll(config, num_lanes=num_lanes, length=length, fragments=max(2, 200 // length))
    found = transitions(fragments)
    assert set(found.values()) == {1}
    assert found.total() == rollout.counts.produced == rollout.counts.sealed
    # Nothing is left out: each episode's steps run from 0 without a gap.
    lengths: Counter[tuple[int, float]] = Counter((lane, episode) for lane, episode, _ in found)
    assert set(found) == {(lane, e, float(t)) for (lane, e), n in lengths.items() for t in range(n)}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("PoisonEnv", "nan_observation"),
        ("PoisonEnv", "huge_reward"),
        ("PoisonEnv", "wrong_shape"),
        ("FaultyEnv", "raise_step"),
        ("FaultyEnv", "raise_reset"),
    ],
)
@pytest.mark.parametrize("length", [7, 64])
def test_faults_leave_fragments_clean_and_counts_balanced(name: str, kind: str, length: int) -> None:
    config = EnvironmentConfig(id=f"environments:{name}", kwargs={"kind": kind, "probability": 0.01})
    rollout, lanes, fragments = roll(config, num_lanes=5, length=length, fragments=400 // length)
    counts = rollout.counts
    assert lanes.restarts.total() > 0
    assert counts.produced == counts.discarded.total() + counts.sealed
    assert counts.sealed == sum(fragment.num_transitions for fragment in fragments)
    assert transitions(fragments).total() == counts.sealed
