"""Peers that benchmarks run against: other ways to do the same work, written for the comparison."""
