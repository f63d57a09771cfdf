"""Redis killed, full, read-only, slow, emptied, or lying: hot only meanwhile, counted, and back by itself."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from cold import (
    COMES_BACK_S,
    ITEMS,
    WAIT_S,
    Partition,
    made,
    make_config,
    settle,
    sink_all,
    sinking,
    wait_for,
)

from headrace.clients.fragments import FragmentSender
from headrace.local.ports import pick_port
from headrace.local.redis import LocalRedis, find_redis
from headrace.testing.proxy import Proxy
from headrace.types import Fragment

Start = Callable[..., Partition]


@pytest.fixture
def start(redis_server: LocalRedis) -> Iterator[Start]:
    """Start partitions that end with the test."""
    partitions: list[Partition] = []

    def make(url: str = "", **changes: Any) -> Partition:
        partitions.append(Partition(url or redis_server.url, **changes))
        return partitions[-1].wait_ready()

    yield make
    for partition in partitions:
        partition.stop()


@pytest.fixture
def client(redis_server: LocalRedis) -> Iterator[Any]:
    with redis.Redis.from_url(redis_server.url) as connection:
        yield connection


def sink_until_throttled(sender: FragmentSender, fragments: list[Fragment]) -> int:
    """Hand over until there is no more leave; returns how many went."""
    for number, fragment in enumerate(fragments):
        if sender.acquire(acting_version=lambda: 0, timeout_s=0.3) is None:
            return number
        sender.send(fragment)
    raise AssertionError("it was never throttled")


def is_out(partition: Partition, reason: str) -> bool:
    return partition.cold.store.reason == reason


def check_outage(
    partition: Partition,
    *,
    begin: Callable[[], None],
    end: Callable[[], None],
    reason: str,
    readable: bool,
) -> None:
    """Before, during and after: what is settled is stored, credit stops, and all goes on by itself."""
    _, fragments = made(3000)
    with sinking(partition.server.address) as sender:
        sink_all(sender, fragments[:10])
        settle(sender, 9)
        sender.release(9)
        wait_for(lambda: partition.totals().get("active") == 10 * ITEMS)
        begin()
        sent = 10 + sink_until_throttled(sender, fragments[10:])
        assert sender.wait_reason == "credit"
        wait_for(lambda: is_out(partition, reason))
        assert sender.unsettled_bytes <= make_config().stream.capacity_bytes
        sample = partition.shard.sample(50)
        assert (sample is not None) == readable
        assert (partition.shard.stats().mass > 0) == readable
        settled = sender.settled_through
        assert settled < sent - 1
        end()
        wait_for(lambda: not partition.cold.store.reason, COMES_BACK_S)
        settle(sender, sent - 1)
        sink_all(sender, fragments[sent : sent + 20])
        settle(sender, sent + 19)
        sender.release(sent + 19)
        wait_for(lambda: partition.totals().get("active") == (sent + 20) * ITEMS)
    assert partition.totals() == {"received": (sent + 20) * ITEMS, "active": (sent + 20) * ITEMS}
    assert partition.shard.sample(500) is not None
    assert ("cold_tier_degraded", reason) in [(kind, fields["reason"]) for kind, fields in partition.events]
    assert "cold_tier_recovered" in partition.kinds()


def test_redis_killed_and_started_again(start: Start, redis_server: LocalRedis) -> None:
    def again() -> None:
        redis_server.start()
        redis_server.wait_ready(WAIT_S)

    check_outage(start(), begin=redis_server.kill, end=again, reason="unreachable", readable=False)


def test_redis_out_of_memory(start: Start, client: Any) -> None:
    before = client.config_get("maxmemory")["maxmemory"]
    check_outage(
        start(),
        begin=lambda: client.config_set("maxmemory", 1),
        end=lambda: client.config_set("maxmemory", before),
        reason="out_of_memory",
        readable=True,
    )


def test_redis_read_only_because_its_disk_fails(
    start: Start, client: Any, redis_server: LocalRedis, tmp_path: Path
) -> None:
    folder = client.config_get("dir")["dir"]
    blocked = Path(folder) / "dump.rdb"

    def fail() -> None:
        # A snapshot that can't be renamed into place: from then on Redis refuses writes.
        blocked.mkdir()
        (blocked / "in-the-way").touch()
        client.config_set("save", "1 1")
        client.config_set("stop-writes-on-bgsave-error", "yes")
        client.bgsave()
        wait_for(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")

    def mend() -> None:
        client.config_set("save", "")
        client.config_set("stop-writes-on-bgsave-error", "no")

    check_outage(start(), begin=fail, end=mend, reason="read_only", readable=True)


def test_redis_a_replica(start: Start, client: Any) -> None:
    check_outage(
        start(),
        begin=lambda: client.execute_command("REPLICAOF", "127.0.0.1", "1"),
        end=lambda: client.execute_command("REPLICAOF", "NO", "ONE"),
        reason="read_only",
        readable=True,
    )


def test_redis_slow(start: Start, redis_server: LocalRedis) -> None:
    port = int(redis_server.url.rsplit(":", 1)[1].split("/")[0])
    with Proxy("127.0.0.1", port) as proxy:
        check_outage(
            start(f"redis://{proxy.address}/0"),
            begin=lambda: proxy.delay(3.0),
            end=proxy.resume,
            reason="slow",
            readable=False,
        )


def test_a_redis_that_comes_back_empty_has_lost_what_it_held(
    start: Start, redis_server: LocalRedis, client: Any
) -> None:
    partition = start()
    _, fragments = made(30)
    with sinking(partition.server.address) as sender:
        sink_all(sender, fragments[:20])
        settle(sender, 19)
        sender.release(11)
        wait_for(lambda: partition.totals().get("active") == 12 * ITEMS)
        client.flushall()
        assert partition.shard.sample(20) is None  # it finds out by looking
        wait_for(lambda: partition.totals() == {"received": 20 * ITEMS, "redis_lost": 20 * ITEMS})
        sink_all(sender, fragments[20:])
        settle(sender, 29)
        sender.release(29)
        wait_for(lambda: partition.totals().get("active") == 10 * ITEMS)
    assert partition.shard.sample(100) is not None


def test_what_redis_has_lost_while_the_service_was_down_is_counted(
    start: Start, redis_server: LocalRedis, client: Any, tmp_path: Path
) -> None:
    first = start(run_dir=tmp_path)
    _, fragments = made(6)
    with sinking(first.server.address) as sender:
        sink_all(sender, fragments)
        settle(sender, 5)
    first.stop()
    client.flushall()
    second = start(run_dir=tmp_path)
    assert second.totals() == {"received": 6 * ITEMS, "redis_lost": 6 * ITEMS}
    with sinking(second.server.address) as sender:
        assert sender.acquire(acting_version=lambda: 0, timeout_s=WAIT_S) is not None
        assert sender.settled_through == 5  # lost is not to be sent again: the sampler may not have it


@pytest.mark.parametrize("damage", [b"", b"HRC1 nonsense", None])
def test_a_damaged_chunk_is_never_served(start: Start, client: Any, damage: bytes | None) -> None:
    partition = start()
    _, fragments = made(3)
    with sinking(partition.server.address) as sender:
        sink_all(sender, fragments)
        assert sender.drain("done", WAIT_S)
    wait_for(lambda: partition.totals().get("active") == 3 * ITEMS)
    key = partition.cold.store.chunk_key(1)
    value = client.get(key)
    client.set(key, value[:-1] + bytes([value[-1] ^ 1]) if damage is None else damage)
    keys = [partition.shard.sample(50).keys for _ in range(5)]
    assert set(np.concatenate(keys) // ITEMS) == {0, 2}
    assert partition.totals() == {"received": 3 * ITEMS, "active": 2 * ITEMS, "damaged": ITEMS}


def test_a_service_that_starts_before_its_redis_waits_for_it(redis_server: LocalRedis, start: Start) -> None:
    redis_server.stop()
    partition = Partition(redis_server.url)
    try:
        wait_for(lambda: is_out(partition, "unreachable"))
        assert partition.shard.sample(1) is None
        redis_server.start()
        assert partition.cold.ready.wait(COMES_BACK_S)
        _, fragments = made(2)
        with sinking(partition.server.address) as sender:
            sink_all(sender, fragments)
            settle(sender, 1)
    finally:
        partition.stop()


def test_all_keys_of_a_partition_lie_in_one_slot_of_a_cluster(start: Start, client: Any) -> None:
    partition = start()
    _, fragments = made(20)
    with sinking(partition.server.address) as sender:
        sink_all(sender, fragments)
        settle(sender, 19)
    assert len(client.keys("*")) == 21
    assert len({redis.cluster.key_slot(key) for key in client.keys("*")}) == 1


def test_a_cluster_is_entered_by_any_of_its_nodes(start: Start, tmp_path: Path) -> None:
    source = find_redis({"PATH": os.environ.get("PATH", "")})
    assert source is not None
    taken: set[int] = set()
    ports = [[pick_port("127.0.0.1", random.Random(), taken) for _ in range(2)] for _ in range(2)]
    nodes = [
        LocalRedis(
            tmp_path / f"node-{port}",
            program=source.program,
            port=port,
            capacity_bytes=2**26,
            settings={"cluster-enabled": "yes", "cluster-port": str(bus)},
        )
        for port, bus in ports
    ]
    try:
        for node in nodes:
            node.start()
            node.wait_ready(WAIT_S)
        clients = [redis.Redis.from_url(node.url) for node in nodes]
        clients[0].execute_command("CLUSTER MEET", "127.0.0.1", *ports[1])
        clients[0].execute_command("CLUSTER ADDSLOTSRANGE", 0, 8191)
        clients[1].execute_command("CLUSTER ADDSLOTSRANGE", 8192, 16383)
        slot = redis.cluster.key_slot(b"{run-1:0}:index")
        home, away = (0, 1) if slot < 8192 else (1, 0)
        wait_for(lambda: _knows_the_way(clients[away], ports[home][0]))
        partition = start(nodes[away].url)
        _, fragments = made(10)
        with sinking(partition.server.address) as sender:
            sink_all(sender, fragments)
            assert sender.drain("done", WAIT_S)
        wait_for(lambda: partition.totals().get("active") == 10 * ITEMS)
        assert partition.shard.sample(100) is not None
        assert len(clients[home].keys("*")) == 11
    finally:
        for node in nodes:
            node.stop()


def _knows_the_way(client: Any, port: int) -> bool:
    try:
        client.get("{run-1:0}:index")
    except redis.exceptions.MovedError as moved:
        return bool(moved.port == port)
    except redis.RedisError:
        return False
    return False


def test_every_write_that_was_cut_is_whole_or_not_there(
    start: Start, redis_server: LocalRedis, client: Any
) -> None:
    port = int(redis_server.url.rsplit(":", 1)[1].split("/")[0])
    with Proxy("127.0.0.1", port) as proxy:
        partition = start(f"redis://{proxy.address}/0")
        _, fragments = made(60)
        with sinking(partition.server.address) as sender:
            for begin in range(0, 60, 10):
                sink_all(sender, fragments[begin : begin + 10])
                proxy.cut()
                entries = client.hkeys(partition.cold.store.key("index"))
                values = client.mget([partition.cold.store.chunk_key(int(field)) for field in entries or [0]])
                assert all(values) or not entries
                proxy.resume()
            settle(sender, 59)
        assert partition.totals() == {"received": 60 * ITEMS, "standby": 60 * ITEMS}
        assert len(client.hkeys(partition.cold.store.key("index"))) == 60
