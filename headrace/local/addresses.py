"""Where the servers of a local run listen: the ports that were asked for, else free ones."""

from __future__ import annotations

import random
from dataclasses import dataclass

from headrace.config.choices import is_off_policy
from headrace.config.sections import Config
from headrace.local.ports import pick_port


@dataclass(frozen=True, slots=True)
class Addresses:
    """``host:port`` of each server; the same over all restarts, so that peers reconnect.

    ``replay`` is empty where the algorithm doesn't learn from it; ``redis_port`` is for a Redis of the run's
    own, if it needs one.
    """

    paramserver: str
    learner: str
    replay: tuple[str, ...] = ()
    redis_port: int = 0


def choose_addresses(config: Config) -> Addresses:
    """Addresses for one run. OSError if there is no free port."""
    network, rng = config.network, random.Random()
    asked = [network.paramserver_port, network.learner_port]
    partitions = config.replay.partitions if is_off_policy(config) else 0
    if network.replay_port:
        asked += [network.replay_port + index for index in range(partitions)]
    taken = {port for port in asked if port}

    def address(port: int) -> str:
        return f"{network.host}:{port or pick_port(network.host, rng, taken)}"

    return Addresses(
        paramserver=address(network.paramserver_port),
        learner=address(network.learner_port),
        replay=tuple(
            address(network.replay_port + index if network.replay_port else 0) for index in range(partitions)
        ),
        redis_port=pick_port(network.host, rng, taken) if partitions else 0,
    )
