"""Run a parameter server: ``python -P -m services.paramserver --config C --run-dir R --listen H:P``."""

from __future__ import annotations

import os
import sys

from headrace import logs
from headrace.config.process import ProcessConfig
from headrace.errors import ConfigurationError, HeadraceError
from headrace.rpc.drain import Drain
from services.paramserver.assembly import run_paramserver

EXIT_FAILED = 1
EXIT_CONFIGURATION = 2


def main() -> int:
    """Load, wire, serve, drain. Exit codes: 0 drained and saved; 1 failed, with reason; 2 set up wrong."""
    try:
        process = ProcessConfig.from_args("paramserver", sys.argv[1:], os.environ)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIGURATION
    logs.configure("paramserver", process.index, process.run_dir, process.config_digest)
    drain = Drain()
    drain.install()
    try:
        saved = run_paramserver(process, drain)
    except ConfigurationError as error:
        logs.get_logger().error(str(error))
        return EXIT_CONFIGURATION
    except (HeadraceError, OSError) as error:
        logs.get_logger().error(str(error))
        return EXIT_FAILED
    if not saved:
        logs.get_logger().error("the last version could not be saved; the checkpoint before it is whole")
    return 0 if saved else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
