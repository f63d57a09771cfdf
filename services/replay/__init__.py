"""Replay: owns the directory (who holds which mass) and the cold tier, chunks of experience in Redis.

Promises: a chunk that was reported settled is stored or accounted for; totals never fall, nothing counts
twice, over any restart; while Redis is unwell nothing hangs and it comes back by itself.
State: Redis, ``replay/`` and ``accounts/`` in the run's folder.
"""
