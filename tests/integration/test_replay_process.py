"""A real replay process: it serves, joins its own directory, and goes on after ``kill -9``."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from cold import WAIT_S, settle, sink_all, wait_for
from fragment_rows import Maker

from headrace.clients.directory import glance
from headrace.clients.fragments import FragmentSender
from headrace.clients.shard import ShardClient
from headrace.cold_accounts import read_cold_accounts
from headrace.config.digest import config_digest
from headrace.config.load import load_config
from headrace.config.sections import EnvironmentConfig
from headrace.errors import UnavailableError
from headrace.events import read_events
from headrace.local.ports import pick_port
from headrace.local.redis import LocalRedis
from headrace.registry import read_records
from headrace.replay.members import DirectoryView
from headrace.replay.shard import HotShard
from headrace.rpc.handshake import Handshake
from headrace.types import Fragment, SamplerIdentity

T, B = 16, 2
DOCUMENT = {
    "run": {"stop": {"updates": 10}},
    "environment": {"id": "CartPole-v1", "lanes": B},
    "sampler": {"count": 1, "fragment_length": T},
    "algorithm": {"name": "dqn", "n_step": 3},
    "replay": {"min_size_to_sample": 64},
}


@contextmanager
def replay_process(run_dir: Path, config: Path, redis: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable, "-P", "-m", "services.replay", "--config", str(config), "--run-dir", str(run_dir),
        "--run-id", "run-1", "--listen", f"127.0.0.1:{port}", "--redis", redis, "--session", "start-1",
    ]  # fmt: skip
    with (run_dir / "replay.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=Path(__file__).parents[2])
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def sunk_fragments(count: int, digest: str) -> list[Fragment]:
    """Real experience of CartPole, as a hot tier sinks it."""
    maker = Maker(EnvironmentConfig(id="CartPole-v1"), fragment_length=T, num_lanes=B)
    hot = HotShard(maker.config.replay, n_step=3, gamma=0.99, rng=np.random.default_rng(0))
    fragments = []
    for number, fragment in enumerate(maker.make(count)):
        hot.insert(fragment)
        fragments.append(replace(hot.fragment(number), config_digest=digest))
    return fragments


def seen(address: str) -> DirectoryView | None:
    try:
        return glance(address).view
    except UnavailableError:
        return None


@pytest.mark.slow
@pytest.mark.chaos
def test_a_killed_replay_process_goes_on_with_everything_it_had(
    tmp_path: Path, redis_server: LocalRedis
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(DOCUMENT), "utf-8")
    digest = config_digest(load_config(path))
    handshake = Handshake(run_id="run-1", config_digest=digest, peer="sampler-0/0")
    port = pick_port("127.0.0.1", random.Random(), set())
    address = f"127.0.0.1:{port}"
    fragments = sunk_fragments(8, digest)
    sender = FragmentSender(
        address,
        handshake,
        SamplerIdentity("sampler-0", 0),
        fragment_bytes=fragments[0].nbytes,
        fragment_transitions=T * B,
        gaps=True,
    )
    sender.start()
    client = ShardClient(address, handshake, max_bytes=2**24)
    try:
        with replay_process(tmp_path, path, redis_server.url, port) as first:
            sink_all(sender, fragments[:6])
            settle(sender, 5)
            sender.release(3)
            wait_for(lambda: (view := seen(address)) is not None and view.count == 4 * T * B)
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
        with replay_process(tmp_path, path, redis_server.url, port) as second:
            sink_all(sender, fragments[6:])
            assert sender.drain("done", WAIT_S)
            wait_for(lambda: (view := seen(address)) is not None and view.count == 8 * T * B)
            wait_for(lambda: client.ready)
            client.answer(client.ask(1, 0), WAIT_S)  # the size of an item is known from now on
            reply = client.answer(client.ask(100, 0), WAIT_S)
            assert reply is not None
            assert reply.sample is not None
            assert reply.sample.size == 100
            second.send_signal(signal.SIGTERM)
            assert second.wait(WAIT_S) == 0
    finally:
        client.close()
        sender.close()
    (account,) = read_cold_accounts(tmp_path)
    assert account.counts.balanced
    assert (account.counts.received, account.counts.active) == (8 * T * B, 8 * T * B)
    assert [record.name for record in read_records(tmp_path)] == ["replay-0"]
    assert "cold_tier_restored" in [event["kind"] for event in read_events(tmp_path)]
