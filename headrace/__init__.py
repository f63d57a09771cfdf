"""Headrace: distributed reinforcement learning as four gRPC services. The shared library."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("headrace")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
