"""Headrace: distributed reinforcement learning as four gRPC services. The shared library."""

import os
from importlib.metadata import PackageNotFoundError, version

# gRPC looks at a connection being made in the background only while some call polls, and otherwise
# every 5 s: a client that calls, fails at once and pauses would find a restarted peer that much later.
# Read when grpc is first imported, so it is set here, where everything begins.
os.environ.setdefault("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "100")

try:
    __version__ = version("headrace")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
