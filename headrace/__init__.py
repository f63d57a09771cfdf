"""Headrace: distributed reinforcement learning as four gRPC services. The shared library."""

import os
from importlib.metadata import PackageNotFoundError, version

# Both are read when grpc is first imported, so they are set here, where everything begins.
# gRPC looks at a connection being made in the background only while some call polls, and otherwise
# every 5 s: a client that calls, fails at once and pauses would find a restarted peer that much later.
os.environ.setdefault("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "100")
# Nobody here uses gRPC in a forked child. Its handlers around fork() would, between fork and exec,
# touch descriptors that are closed already: now and then the child dies of SIGABRT before it begins.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

try:
    __version__ = version("headrace")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
