"""The frame of every service process: read its place, set up logs, work, leave with an honest exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from headrace import logs
from headrace.config.process import ProcessConfig
from headrace.errors import ConfigurationError, EnvironmentFaultError, HandshakeError, HeadraceError
from headrace.rpc.credentials import Credentials, use_credentials
from headrace.rpc.drain import Drain

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_CONFIGURATION = 2
EXIT_ENVIRONMENT = 3


def run_service(service: str, work: Callable[[ProcessConfig, Drain], None]) -> int:
    """Run ``work(process, drain)``; returns the exit code.

    0: drained in order. 1: failed, the reason is the last line of the log. 2: the configuration or the
    peers don't fit, 3: the environment failed too often in a row; starting again can't help.
    """
    try:
        process = ProcessConfig.from_args(service, sys.argv[1:], os.environ)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIGURATION
    kind = process.name.rsplit("-", 1)[0]
    logs.configure(kind, process.index, process.run_dir, process.config_digest)
    drain = Drain()
    drain.install()
    try:
        use_credentials(Credentials(process.tls, process.token_file))
        work(process, drain)
    except (ConfigurationError, HandshakeError) as error:
        logs.get_logger().error(str(error))
        return EXIT_CONFIGURATION
    except EnvironmentFaultError as error:
        logs.get_logger().error(str(error))
        return EXIT_ENVIRONMENT
    except HeadraceError as error:
        logs.get_logger().error(str(error))
        return EXIT_FAILED
    return EXIT_DONE
