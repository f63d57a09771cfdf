"""Run a replay partition: ``python -P -m services.replay --config C --listen H:P --redis URL --index N``."""

from __future__ import annotations

import sys

from headrace.rpc.entry import run_service
from services.replay.assembly import run_replay

if __name__ == "__main__":
    sys.exit(run_service("replay", run_replay))
