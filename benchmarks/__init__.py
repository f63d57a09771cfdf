"""Measurements against peers and bare limits, each run as ``python -P -m benchmarks.<name>``."""
