"""Sampler: owns environments and a copy of the policy.

Promises: every fragment is acted by one policy version, checked, numbered and kept until it is settled.
State: none that matters; counters in RUN/accounts survive a kill for the ledger.
"""
