"""V-trace: values and advantages of the policy as it is now, from what an older one did.

Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures"
(2018), section 4.1. Every kind of end counts as in :mod:`headrace.rl.returns`, and everything given out is a
constant to learn from. The columns ``value``, ``bootstrap_value`` and ``final_value`` must be those of the
network that learns: the acting policy's own would mix two value functions in one error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headrace.rl.returns import FloatArray, deltas_and_traces, rows_after, scan_batch, valid_mask
from headrace.types import VALUE, Array, Batch


class Clips(NamedTuple):
    """Largest importance ratios, each above 0."""

    rho_bar: float  # in the one-step errors: decides whose value function is learned
    c_bar: float  # in the traces: how far corrections reach back; at most rho_bar
    policy_rho_bar: float  # in the policy's gradient


@dataclass(frozen=True, slots=True)
class VTrace:
    """What V-trace makes of a batch ``[T, sum of B]``, in units of reward; 0 where a step is not valid."""

    target: FloatArray  # what the value is regressed on: the paper's v_s
    advantage: FloatArray  # of the action taken, not yet weighted
    weight: FloatArray  # of the action taken in the policy's gradient


def vtrace(batch: Batch, log_ratio: Array, *, gamma: float, trace_lambda: float, clips: Clips) -> VTrace:
    """Targets, advantages and weights of a batch, however its episodes were cut.

    ``log_ratio`` ``[T, sum of B]`` is log pi(a|s) minus behavior_log_prob. With rho the ratio itself::

        target_t - V_t = min(rho_bar, rho_t) delta_t + gamma c_t (target_{t+1} - V_{t+1})
        delta_t = r_t + gamma V_{t+1} - V_t,    c_t = lambda min(c_bar, rho_t)
        advantage_t = r_t + gamma (V_{t+1} + lambda (target_{t+1} - V_{t+1})) - V_t

    The advantage bootstraps from the paper's v_{t+1} where lambda is 1. For smaller ones only lambda of the
    correction is taken over, so that on-policy the advantage is the generalized one for every lambda.
    Traces end with episodes, and run on where the fragment that follows is in the batch. ValueError if a
    truncated step has no ``final_value``.
    """
    columns, valid = batch.columns, valid_mask(batch.columns)
    known = np.where(valid, log_ratio, 0.0).astype(np.float64)
    deltas, inside = deltas_and_traces(columns, gamma, 1.0)
    traces = trace_lambda * inside * _clipped(known, clips.c_bar)
    errors = scan_batch(_clipped(known, clips.rho_bar) * deltas, traces, batch.fragment_ids)
    advantage = deltas + trace_lambda * inside * rows_after(errors, batch.fragment_ids)
    value = np.where(valid, columns[VALUE], 0.0).astype(np.float64)
    return VTrace(value + errors, advantage, _clipped(known, clips.policy_rho_bar) * valid)


def _clipped(log_ratio: FloatArray, bar: float) -> FloatArray:
    """``min(bar, ratio)``, clipped before the exponential so that nothing overflows."""
    result: FloatArray = np.exp(np.minimum(log_ratio, math.log(bar)))
    return result
