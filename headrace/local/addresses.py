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
    relays: tuple[str, ...] = ()

    def watched_by(self, place: int) -> str:
        """What the process at ``place`` among those who watch (samplers, then the evaluator) should watch:
        the relays in turns, or the paramserver where there are none."""
        return self.relays[place % len(self.relays)] if self.relays else self.paramserver

    def upstream_of(self, relay: int, fan_out: int | None) -> str:
        """What a relay watches: the paramserver, if there is no fan-out.

        With a fan-out F relays 0 to F-1 watch the paramserver, F to 2F-1 relay 0, and so on: a tree in
        which nobody has more than F relays to serve.
        """
        parent = -1 if fan_out is None else relay // fan_out - 1
        return self.paramserver if parent < 0 else self.relays[parent]


def choose_addresses(config: Config) -> Addresses:
    """Addresses for one run. OSError if there is no free port."""
    network, rng = config.network, random.Random()
    learners, replay, relays = learner_ports(config), replay_ports(config), relay_ports(config)
    taken = {port for port in (network.paramserver_port, *learners, *replay, *relays) if port}

    def address(port: int) -> str:
        return f"{network.host}:{port or pick_port(network.host, rng, taken)}"

    return Addresses(
        paramserver=address(network.paramserver_port),
        learners=tuple(map(address, learners)),
        replay=tuple(map(address, replay)),
        relays=tuple(map(address, relays)),
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


def relay_ports(config: Config) -> list[int]:
    """The port of each relay, 0: a free one."""
    first = config.network.relay_port
    return [first + index if first else 0 for index in range(config.paramserver.relays)]
