"""Environments: spaces as flat leaves, environment factories, vectors of lanes, validation of what they emit.

Start with :mod:`headrace.envs.lanes`. Worker processes import nothing of Headrace beyond this package,
the errors and the configuration sections.
"""
