"""Asynchronous advantage actor-critic.

Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning" (2016). What is asynchronous about it lies
between the learners (``sync``), not in what each of them computes: that is A2C, on short batches.
"""

from __future__ import annotations

from headrace.rl.a2c import A2c


class A3c(A2c):
    """A learner of A3C: the gradient of one batch, as :class:`headrace.rl.a2c.A2c` computes it."""
