"""Run a learner: ``python -P -m services.learner --config C --listen H:P --paramserver H:P``."""

from __future__ import annotations

import sys

from headrace.rpc.entry import run_service
from services.learner.assembly import run_learner

if __name__ == "__main__":
    sys.exit(run_service("learner", run_learner))
