"""Run a parameter server: ``python -P -m services.paramserver --config C --run-dir R --listen H:P``.

With ``--relay --paramserver H:P`` it passes the versions of that one on instead.
"""

from __future__ import annotations

import sys

from headrace.config.process import ProcessConfig
from headrace.errors import RunFailedError
from headrace.rpc.drain import Drain
from headrace.rpc.entry import Ready, run_service
from services.paramserver.assembly import run_paramserver
from services.paramserver.relay.assembly import run_relay


def work(process: ProcessConfig, drain: Drain, ready: Ready) -> None:
    """Serve until drained, then save; or pass on until drained."""
    if process.relay:
        run_relay(process, drain, ready)
        return
    try:
        run_paramserver(process, drain, ready)
    except OSError as error:
        raise RunFailedError(str(error)) from error


if __name__ == "__main__":
    sys.exit(run_service("paramserver", work))
