"""A stream of steps of some lanes, whose every observation is its own name, cut into fragments at will."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.types import Array, Fragment, FragmentId, PolicyVersion, SamplerIdentity

IDENTITY = SamplerIdentity("sampler-0", 0)


@dataclass(frozen=True, slots=True)
class Stream:
    """S steps of B lanes. ``after`` ``[S, B]``: the true observation after each step.

    ``valid`` ``[S, B]``: which steps are transitions; None: all.
    """

    observation: npt.NDArray[np.float32]
    after: npt.NDArray[np.float32]
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    valid: npt.NDArray[np.bool_] | None = None

    def fragments(self, length: int, *, version: int = 1) -> list[Fragment]:
        """Whole fragments of ``length`` steps; version ``version`` acts in the first, then one more each."""
        steps, lanes = self.reward.shape
        made = []
        for sequence, begin in enumerate(range(0, steps - length + 1, length)):
            part = slice(begin, begin + length)
            ended = (self.terminated[part] | self.truncated[part]).reshape(-1)
            index = np.flatnonzero(ended)
            valid = np.ones((length, lanes), np.bool_) if self.valid is None else self.valid[part]
            columns: dict[str, Array] = {
                "observation": np.where(valid, self.observation[part], np.float32(0))[:, :, None],
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
            if not valid.all():
                columns["valid"] = valid
            made.append(
                Fragment(
                    FragmentId(IDENTITY, sequence),
                    PolicyVersion(1, version + sequence),
                    "digest",
                    columns,
                    num_transitions=int(np.count_nonzero(valid)),
                    produced_through=(sequence + 1) * length * lanes,
                )
            )
        return made

    def next_observation(self, step: int) -> npt.NDArray[np.float32]:
        """What the lanes show after ``step``: a new episode's first observation where one has ended."""
        if step + 1 < len(self.observation):
            return self.observation[step + 1]
        return self.after[step]

    def target(
        self, step: int, lane: int, n_step: int, gamma: float, cuts: Collection[int] = ()
    ) -> tuple[float, float, float]:
        """n-step return, discount of the bootstrap, and the observation to bootstrap from, by hand.

        ``cuts``: steps after which the fragment that follows is missing.
        """
        total, weight = 0.0, 1.0
        for now in range(step, min(step + n_step, len(self.reward))):
            total += weight * float(self.reward[now, lane])
            weight *= gamma
            if self.terminated[now, lane]:
                return total, 0.0, float(self.after[now, lane])
            last = now == step + n_step - 1 or now + 1 == len(self.reward) or now in cuts
            if self.truncated[now, lane] or last:
                return total, weight, float(self.after[now, lane])
            if self.valid is not None and not self.valid[now + 1, lane]:
                return total, weight, float(self.after[now, lane])
        raise AssertionError("no step")

    def sequence(self, begin: int, lane: int, length: int, cuts: Collection[int] = ()) -> list[int]:
        """The steps, at most ``length``, from ``begin`` on to the end of the episode, by hand.

        ``cuts``: steps after which the fragment that follows is missing.
        """
        rows = [begin]
        while len(rows) < length:
            now = rows[-1]
            if self.terminated[now, lane] or self.truncated[now, lane] or now in cuts:
                break
            if now + 1 == len(self.reward) or (self.valid is not None and not self.valid[now + 1, lane]):
                break
            rows.append(now + 1)
        return rows


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


def eventful_stream(steps: int, lanes: int, *, seed: int, length: int) -> Stream:
    """Episodes of 1 to 8 steps with every end, some with a reset step after it, for fragments of ``length``.

    Some are discarded at their last step: what of them is in the fragment of that step is invalid, what is in
    an earlier one had been handed over before.
    """
    rng = np.random.default_rng(seed)
    plain = stream(steps, lanes, seed=seed, end_probability=0.0)
    valid = np.ones((steps, lanes), np.bool_)
    for lane in range(lanes):
        begin = 0
        while begin < steps:
            end = begin + int(rng.integers(0, 8))
            kind = rng.choice(["terminated", "truncated", "both", "discarded"])
            if end < steps and kind == "discarded":
                valid[max(begin, end // length * length) : end + 1, lane] = False
            elif end < steps:
                plain.terminated[end, lane] = kind in ("terminated", "both")
                plain.truncated[end, lane] = kind in ("truncated", "both")
                plain.after[end, lane] = -plain.observation[end, lane]
            begin = end + 1
            if begin < steps and rng.random() < 0.3:
                valid[begin, lane] = False
                begin += 1
    return replace(plain, valid=valid)
