"""Run a sampler: ``python -P -m services.sampler --config C --paramserver H:P --learner H:P``.

With ``--evaluate`` it acts greedily and reports returns instead.
"""

from __future__ import annotations

import sys

from headrace.config.process import ProcessConfig
from headrace.rpc.drain import Drain
from headrace.rpc.entry import Ready, run_service
from services.sampler.assembly import run_evaluator, run_sampler


def work(process: ProcessConfig, drain: Drain, ready: Ready) -> None:
    """Sample or evaluate until drained."""
    if process.evaluate:
        run_evaluator(process, drain, ready)
    else:
        run_sampler(process, drain, ready)


if __name__ == "__main__":
    sys.exit(run_service("sampler", work))
