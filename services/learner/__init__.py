"""Learner: owns the algorithm; turns fragments into policy versions.

Promises: bounded memory by credits, policy lag within the bound, nothing trained twice or silently lost.
State: none on disk; parameters, training state and accounts travel with each version to the paramserver.
"""
