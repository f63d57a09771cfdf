"""Makes a Redis Cluster of numbered nodes, and keeps it one: runs beside each node, as often as needed.

Each copy looks after its own node alone, by these rules, again and again:

* It introduces its node to every other one that the node doesn't know at its present address: a pod that
  comes back has another address, and if all came back at once nobody would find anybody.
* A node that holds no slots and knows all others takes its part of the slots, if nobody has it and it is
  one of the first ``primaries``; otherwise it becomes a replica of whoever has that part.

A node that holds slots, or is a replica already, is left alone: who is primary is the cluster's to say.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import redis

SLOTS = 16384
EVERY_S = 3.0
_TIMEOUT_S = 2.0
_UNKNOWN = ("handshake", "noaddr", "fail")

Address = tuple[str, int]


@dataclass(frozen=True)
class Node:
    """A line of CLUSTER NODES."""

    id: str
    address: Address
    flags: frozenset[str]
    slots: tuple[tuple[int, int], ...]  # first and last of each range

    @property
    def is_there(self) -> bool:
        """Whether it is known well: met, at an address, and not failing."""
        return not self.flags.intersection(_UNKNOWN)


def parse_nodes(text: str) -> list[Node]:
    """The nodes of an answer to CLUSTER NODES."""
    nodes = []
    for line in text.splitlines():
        name, address, flags, _, _, _, _, _, *slots = line.split()
        host, _, port = address.partition("@")[0].rpartition(":")
        ranges = [part.partition("-") for part in slots if not part.startswith("[")]
        nodes.append(
            Node(
                id=name,
                address=(host, int(port)),
                flags=frozenset(flags.split(",")),
                slots=tuple((int(first), int(last or first)) for first, _, last in ranges),
            )
        )
    return nodes


def part_of(index: int, primaries: int) -> tuple[int, int]:
    """First and last slot that the node with this number is for, itself or as a replica."""
    place = index % primaries
    return place * SLOTS // primaries, (place + 1) * SLOTS // primaries - 1


def decide(nodes: Sequence[Node], index: int, count: int, primaries: int) -> tuple[str, ...]:
    """What this node has to do now: a CLUSTER command, or nothing."""
    me = next(node for node in nodes if "myself" in node.flags)
    if me.slots or "slave" in me.flags or sum(node.is_there for node in nodes) < count:
        return ()
    first, last = part_of(index, primaries)
    owner = next((n for n in nodes if any(a <= first <= b for a, b in n.slots)), None)
    if owner is not None:
        return ("CLUSTER", "REPLICATE", owner.id)
    return ("CLUSTER", "ADDSLOTSRANGE", str(first), str(last)) if index < primaries else ()


def step(addresses: Sequence[str], index: int, primaries: int) -> tuple[str, ...]:
    """Look at this node once and do what it needs; returns the command that was given besides meeting.

    ``addresses``: ``host:port`` of each node, by number. Raises redis.RedisError or OSError.
    """
    host, _, port = addresses[index].rpartition(":")
    with redis.Redis(
        host, int(port), socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, decode_responses=True
    ) as client:
        nodes = parse_nodes(client.execute_command("CLUSTER", "NODES"))
        if len(nodes) == 1:
            _number(client, index)
        known = {node.address for node in nodes if node.is_there}
        for place, address in enumerate(addresses):
            resolved = _resolve(address) if place != index else None
            if resolved is not None and resolved not in known:
                client.execute_command("CLUSTER", "MEET", resolved[0], str(resolved[1]))
        command = decide(nodes, index, len(addresses), primaries)
        if command:
            client.execute_command(*command)
        return command


def _number(client: redis.Redis, index: int) -> None:
    """Give a new node an epoch of its own, so that no two of them claim slots with the same one."""
    with suppress(redis.ResponseError):  # it has one
        client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", str(index + 1))


def _resolve(address: str) -> Address | None:
    host, _, port = address.rpartition(":")
    try:
        return socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][4][0], int(port)
    except OSError:
        return None  # no pod of that name yet


def main() -> int:
    """Look after one node until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", required=True, help="host:port, with {index} for the number")
    parser.add_argument("--count", type=int, required=True, help="how many nodes")
    parser.add_argument("--primaries", type=int, required=True, help="how many of them begin as primaries")
    parser.add_argument("--me", required=True, help="name of this node, which ends in its number")
    options = parser.parse_args()
    addresses = [options.nodes.replace("{index}", str(index)) for index in range(options.count)]
    index = int(options.me.rpartition("-")[2])
    stop, said = threading.Event(), ""
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    while not stop.wait(EVERY_S):
        try:
            sentence = " ".join(step(addresses, index, options.primaries))
        except (redis.RedisError, OSError) as error:
            sentence = f"not now: {error}"
        if sentence and sentence != said:
            print(sentence, flush=True)
        said = sentence
    return 0


if __name__ == "__main__":
    sys.exit(main())
