"""Replay: owns the directory of experience (first partition) and the cold tier.

Promises: no experience passes through the directory; totals never fall, nothing counts twice, over any
restart. State: ``replay/directory.json`` in the run's folder; cold experience is in Redis.
"""
