"""A stream of steps of some lanes, whose every observation is its own name, cut into fragments at will."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.types import Array, Fragment, FragmentId, PolicyVersion, SamplerIdentity

IDENTITY = SamplerIdentity("sampler-0", 0)


@dataclass(frozen=True, slots=True)
class Stream:
    """S steps of B lanes. ``after`` ``[S, B]``: the true observation after each step."""

    observation: npt.NDArray[np.float32]
    after: npt.NDArray[np.float32]
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]

    def fragments(self, length: int, *, version: int = 1) -> list[Fragment]:
        """Whole fragments of ``length`` steps; version ``version`` acts in the first, then one more each."""
        steps, lanes = self.reward.shape
        made = []
        for sequence, begin in enumerate(range(0, steps - length + 1, length)):
            part = slice(begin, begin + length)
            ended = (self.terminated[part] | self.truncated[part]).reshape(-1)
            index = np.flatnonzero(ended)
            columns: dict[str, Array] = {
                "observation": self.observation[part, :, None],
                "action": np.arange(length * lanes, dtype=np.int64).reshape(length, lanes),
                "reward": self.reward[part],
                "terminated": self.terminated[part],
                "truncated": self.truncated[part],
                "bootstrap_observation": self.next_observation(begin + length - 1)[:, None],
                "final_index": index.astype(np.int32),
                "final_observation": self.after[part].reshape(-1)[index][:, None],
                "lane_seed": np.zeros(lanes, np.int64),
                "lane_episode": np.zeros(lanes, np.int64),
                "lane_step": np.zeros(lanes, np.int32),
                "episode/return": np.zeros(len(index)),
                "episode/length": np.zeros(len(index), np.int32),
            }
            made.append(
                Fragment(
                    FragmentId(IDENTITY, sequence),
                    PolicyVersion(1, version + sequence),
                    "digest",
                    columns,
                    num_transitions=length * lanes,
                    produced_through=(sequence + 1) * length * lanes,
                )
            )
        return made

    def next_observation(self, step: int) -> npt.NDArray[np.float32]:
        """What the lanes show after ``step``: a new episode's first observation where one has ended."""
        if step + 1 < len(self.observation):
            return self.observation[step + 1]
        return self.after[step]

    def target(self, step: int, lane: int, n_step: int, gamma: float) -> tuple[float, float, float]:
        """n-step return, discount of the bootstrap, and the observation to bootstrap from, by hand."""
        total, weight = 0.0, 1.0
        for now in range(step, min(step + n_step, len(self.reward))):
            total += weight * float(self.reward[now, lane])
            weight *= gamma
            if self.terminated[now, lane]:
                return total, 0.0, float(self.after[now, lane])
            if self.truncated[now, lane] or now == step + n_step - 1 or now + 1 == len(self.reward):
                return total, weight, float(self.after[now, lane])
        raise AssertionError("no step")


def stream(steps: int, lanes: int, *, seed: int, end_probability: float = 0.2) -> Stream:
    """Random rewards and ends of both kinds (also both at once); observations are 1, 2, 3, ..."""
    rng = np.random.default_rng(seed)
    terminated = rng.random((steps, lanes)) < end_probability
    truncated = rng.random((steps, lanes)) < end_probability
    observation = np.arange(1, steps * lanes + 1, dtype=np.float32).reshape(steps, lanes)
    after = np.empty_like(observation)
    after[:-1] = observation[1:]
    after[-1] = observation[-1] + lanes
    ended = terminated | truncated
    after[ended] = -observation[ended]  # the last observation of an episode is seen nowhere else
    reward = rng.normal(size=(steps, lanes)).astype(np.float32)
    return Stream(observation, after, reward, terminated, truncated)


def constant_stream(steps: int, lanes: int) -> Stream:
    """One endless episode a lane, reward 1."""
    whole = stream(steps, lanes, seed=0, end_probability=0.0)
    return Stream(
        whole.observation, whole.after, np.ones_like(whole.reward), whole.terminated, whole.truncated
    )
