"""How far exploration is: scalars among the acting parameters, and what an actor makes of them."""

from __future__ import annotations

EPSILON = "exploration/epsilon"
"""Probability of a random action, float32."""

RANDOM = "exploration/random"
"""1 while actions are uniformly random, else 0; float32."""


def ladder_exponent(sampler_index: int, num_samplers: int) -> float:
    """What sampler i of N raises epsilon to: ``1 + 7 i / (N - 1)``.

    Horgan et al., "Distributed Prioritized Experience Replay" (2018), section 4.1.
    """
    return 1.0 + 7.0 * min(sampler_index, num_samplers - 1) / max(1, num_samplers - 1)
