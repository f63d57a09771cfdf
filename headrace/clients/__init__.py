"""Typed clients: they return values of ``headrace.types`` and hide the stubs."""
