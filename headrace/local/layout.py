"""Which processes a local run has, with their command lines, in the order in which they start."""

from __future__ import annotations

import sys

from headrace.config.choices import is_off_policy
from headrace.config.process import THREAD_VARIABLES
from headrace.config.sections import Config
from headrace.local.addresses import Addresses
from headrace.local.process import ProcessSpec
from headrace.local.run_folder import RunFolder
from headrace.local.security import security_flags

PARAMSERVER, RELAY, REPLAY, LEARNER = "paramserver", "relay", "replay", "learner"
SAMPLER, EVALUATOR = "sampler", "evaluator"

_MODULES = {EVALUATOR: SAMPLER, RELAY: PARAMSERVER}  # kinds that are another service's module with a switch


def processes(
    config: Config,
    folder: RunFolder,
    run_id: str,
    addresses: Addresses,
    *,
    redis: str = "",
    session: str = "",
) -> list[ProcessSpec]:
    """All services of the run. ``redis``: URL of the Redis that holds the cold tier, empty: there is none.
    ``session`` names this start of the run.
    """
    host, ports = config.network.host, metrics_ports(config)

    def spec(service: str, index: int, listen: str, threads: int = 1, *more: str) -> ProcessSpec:
        module = _MODULES.get(service, service)
        flags = {
            "--config": str(folder.config.resolve()),
            "--run-dir": str(folder.path.resolve()),
            "--run-id": run_id,
            "--index": str(index),
            "--listen": listen,
            "--metrics-port": str(ports[f"{service}-{index}"]),
            "--paramserver": _watched(config, service, index, addresses),
            # Each sampler feeds one learner; a learner's samplers are spread evenly.
            "--learner": addresses.learners[index % len(addresses.learners)],
            **security_flags(config, folder),
            **_replay_flags(service, index, addresses, redis, session),
        }
        command = [sys.executable, "-P", "-m", f"services.{module}"]
        command += [part for flag in flags.items() for part in flag]
        return ProcessSpec(
            service, index, (*command, *more), process_environment(threads), folder.log(service, index)
        )

    anywhere = f"{host}:0"
    specs = [
        spec(PARAMSERVER, 0, addresses.paramserver),
        *(spec(RELAY, index, address, 1, "--relay") for index, address in enumerate(addresses.relays)),
        *(spec(REPLAY, index, address) for index, address in enumerate(addresses.replay)),
        *(
            spec(LEARNER, index, address, config.learner.torch_threads)
            for index, address in enumerate(addresses.learners)
        ),
    ]
    threads = config.sampler.torch_threads
    specs += [spec(SAMPLER, index, anywhere, threads) for index in range(config.sampler.count)]
    if config.evaluation.enabled:
        specs.append(spec(EVALUATOR, 0, anywhere, threads, "--evaluate"))
    return specs


def _watched(config: Config, service: str, index: int, addresses: Addresses) -> str:
    """Where a process finds versions. Learners publish, so they have the paramserver itself."""
    if service == RELAY:
        return addresses.upstream_of(index, config.paramserver.relay_fan_out)
    if service == SAMPLER:
        return addresses.watched_by(index)
    return addresses.watched_by(config.sampler.count) if service == EVALUATOR else addresses.paramserver


def _replay_flags(service: str, index: int, addresses: Addresses, redis: str, session: str) -> dict[str, str]:
    """Where the directory is; for samplers also the partition to sink to, for partitions their Redis."""
    if not addresses.replay:
        return {}
    flags = {"--replay": ",".join(addresses.replay), "--session": session}
    if redis and service == SAMPLER:
        flags["--sink"] = addresses.replay[index % len(addresses.replay)]
    if redis and service == REPLAY:
        flags["--redis"] = redis
    return flags


def metrics_ports(config: Config) -> dict[str, int]:
    """Metrics port by process name: counted upward from ``network.metrics_port``, or all 0 (a free one)."""
    names = [f"{PARAMSERVER}-0", *(f"{LEARNER}-{index}" for index in range(config.learner.count))]
    if is_off_policy(config):
        names += [f"{REPLAY}-{index}" for index in range(config.replay.partitions)]
    names += [f"{SAMPLER}-{index}" for index in range(config.sampler.count)]
    if config.evaluation.enabled:
        names.append(f"{EVALUATOR}-0")
    names += [f"{RELAY}-{index}" for index in range(config.paramserver.relays)]
    first = config.network.metrics_port
    return {name: first + offset if first else 0 for offset, name in enumerate(names)}


def process_environment(threads: int) -> dict[str, str]:
    """Threads of the numeric libraries; each would otherwise take every core of the machine for itself."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))
