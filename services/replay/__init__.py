"""Replay: owns the directory of experience (first partition) and the cold tier, chunks of it in Redis.

Promises: no experience passes through the directory; totals never fall, nothing counts twice, over any
restart; a chunk that was reported settled is stored or accounted for; while Redis is unwell nothing hangs,
and it comes back by itself. State: Redis; in the run's folder ``replay/directory.json`` and small account
files.
"""
