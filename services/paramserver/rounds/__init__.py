"""Rounds at the parameter server: the work of several learners becomes one version after the other."""
