"""Replay: owns the directory (who holds which mass) and the cold tier, chunks of experience in Redis.

Promises: a chunk that was reported settled is stored or accounted for; memory is bounded by bytes; while
Redis is unwell nothing hangs, and it comes back by itself. State: Redis, and small account files in the run's
folder.
"""
