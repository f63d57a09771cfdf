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
    learners: tuple[str, ...]
    replay: tuple[str, ...] = ()
    redis_port: int = 0


def choose_addresses(config: Config) -> Addresses:
    """Addresses for one run. OSError if there is no free port."""
    network, rng = config.network, random.Random()
    learners, replay = learner_ports(config), replay_ports(config)
    taken = {port for port in (network.paramserver_port, *learners, *replay) if port}

    def address(port: int) -> str:
        return f"{network.host}:{port or pick_port(network.host, rng, taken)}"

    return Addresses(
        paramserver=address(network.paramserver_port),
        learners=tuple(map(address, learners)),
        replay=tuple(map(address, replay)),
        redis_port=pick_port(network.host, rng, taken) if replay else 0,
    )


def learner_ports(config: Config) -> list[int]:
    """The port of each learner, 0: a free one."""
    first = config.network.learner_port
    return [first + index if first else 0 for index in range(config.learner.count)]


def replay_ports(config: Config) -> list[int]:
    """The port of each replay service, 0: a free one; none where the algorithm doesn't learn from replay."""
    first = config.network.replay_port
    partitions = config.replay.partitions if is_off_policy(config) else 0
    return [first + index if first else 0 for index in range(partitions)]
