"""The frame of every service process: read its place, set up logs, work, leave with an honest exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from headrace import logs
from headrace.config.process import ProcessConfig
from headrace.errors import (
    BeginAgainError,
    ConfigurationError,
    EnvironmentFaultError,
    ExhaustedError,
    HandshakeError,
    HeadraceError,
    UnavailableError,
)
from headrace.rpc.credentials import Credentials, use_credentials
from headrace.rpc.drain import Drain
from headrace.rpc.probes import Probes
from headrace.rpc.server import split_address

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_CONFIGURATION = 2
EXIT_ENVIRONMENT = 3

_REFUSED_PAUSE_S = 5.0  # before a process that peers have refused asks them again

Ready = Callable[[], None]
"""Called by a service once it does its work."""

Work = Callable[[ProcessConfig, Drain, Ready], None]


def run_service(service: str, work: Work) -> int:
    """Run ``work(process, drain, ready)``; returns the exit code.

    0: drained in order. 1: failed, the reason is the last line of the log. 2: the configuration or the
    peers don't fit, 3: the environment failed too often in a row; starting again can't help.

    A process that lingers begins again by itself where its peers refuse it: while a run is moved to another
    configuration they are not all of the same one.
    """
    try:
        process = ProcessConfig.from_args(service, sys.argv[1:], os.environ)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIGURATION
    if process.run_dir is not None:
        try:
            process.run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            print(f"--run-dir: {process.run_dir} can't be made: {error}", file=sys.stderr)
            return EXIT_CONFIGURATION
    logs.configure(process.kind, process.index, process.run_dir, process.config_digest, pod=process.pod)
    drain = Drain()
    drain.install()
    try:
        use_credentials(Credentials(process.tls, process.token_file))
        code = _work(process, drain, work)
    except BeginAgainError as error:
        logs.get_logger().info(f"begins again: {error}")
        return EXIT_DONE if drain.requested else _begin_again(process)
    except HandshakeError as error:
        logs.get_logger().error(str(error))
        if not process.linger:
            return EXIT_CONFIGURATION
        return EXIT_DONE if drain.wait(_REFUSED_PAUSE_S) else _begin_again(process)
    except ConfigurationError as error:
        logs.get_logger().error(str(error))
        return EXIT_CONFIGURATION
    except EnvironmentFaultError as error:
        logs.get_logger().error(str(error))
        return EXIT_ENVIRONMENT
    except HeadraceError as error:
        if drain.requested and isinstance(error, UnavailableError | ExhaustedError):
            return EXIT_DONE  # it gave up waiting for a peer because it was told to go
        logs.get_logger().error(str(error))
        return EXIT_FAILED
    return code


def _work(process: ProcessConfig, drain: Drain, work: Work) -> int:
    if process.health_port is None:
        work(process, drain, lambda: None)
        return EXIT_DONE
    host, _port = split_address(process.listen)
    probes = Probes(host, process.health_port)
    probes.follow(drain)
    try:
        work(process, drain, probes.ready)
    finally:
        probes.close()
    return EXIT_DONE


def _begin_again(process: ProcessConfig) -> int:
    """Replace this process by a new start of itself. The process id stays, so nobody counts a restart."""
    module = f"services.{process.service}"
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *sys.argv[1:]])
