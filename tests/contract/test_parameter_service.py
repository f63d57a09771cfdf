"""The parameter service over a real channel."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paramserving import (
    PATIENCE_S,
    eventually,
    make_account,
    make_config,
    make_handshake,
    make_parameters,
    make_report,
    make_settings,
    serving,
)

from headrace.checkpoint import Blob
from headrace.clients.blobs import ACTING, chunks_of, manifest_of
from headrace.clients.parameters import PublishClient, SnapshotWatcher
from headrace.errors import FencedError, HandshakeError, InvalidDataError
from headrace.events import read_events
from headrace.rpc.channel import open_channel
from headrace.types import PolicyVersion
from headrace.v1 import parameters_pb2, parameters_service_pb2_grpc
from services.paramserver.assembly import Paramserver
from services.paramserver.config import Settings
from services.paramserver.versions import RECENT_BYTES

MIB = 2**20


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


@pytest.fixture
def server(settings: Settings) -> Iterator[Paramserver]:
    with serving(settings) as running:
        yield running


@pytest.fixture
def learner(server: Paramserver, settings: Settings) -> Iterator[PublishClient]:
    client = PublishClient(server.server.address, make_handshake(settings))
    yield client
    client.close()


@pytest.fixture
def watcher(server: Paramserver, settings: Settings) -> Iterator[SnapshotWatcher]:
    client = SnapshotWatcher(server.server.address, make_handshake(settings, "sampler-0/0"))
    client.start()
    yield client
    client.stop()


def publish(learner: PublishClient, base: PolicyVersion | None, updates: int, **fields: Any) -> PolicyVersion:
    values: dict[str, Any] = {
        "acting": make_parameters(updates),
        "training": {"optimizer": np.full(3, updates)},
        "report": make_report(updates),
        "accounts": [],
    }
    return learner.publish(base, **(values | fields), timeout_s=PATIENCE_S).version


def watch_raw(server: Paramserver, settings: Settings) -> Any:
    """A watch as it is on the wire, read as slowly as the test likes."""
    stub = parameters_service_pb2_grpc.ParameterServiceStub(open_channel(server.server.address))
    request = parameters_pb2.WatchVersionsRequest(handshake=make_handshake(settings).to_proto())
    return stub.WatchVersions(request)


@pytest.mark.parametrize(
    "parameters",
    [{}, {"scale": np.float32(2).reshape(())}, {"none": np.zeros((0, 4), np.float32)}, make_parameters(1)],
    ids=["no tensors", "a scalar", "an empty tensor", "several"],
)
def test_what_is_published_is_what_a_watcher_acts_with(
    learner: PublishClient, watcher: SnapshotWatcher, settings: Settings, parameters: dict[str, np.ndarray]
) -> None:
    version = publish(learner, None, 0, acting=parameters)
    snapshot = watcher.wait_newer(None, PATIENCE_S)
    assert snapshot is not None
    assert (snapshot.version, snapshot.config_digest) == (version, settings.config_digest)
    assert snapshot.parameters.keys() == parameters.keys()
    for name, array in parameters.items():
        np.testing.assert_array_equal(snapshot.parameters[name], array)


def test_a_learner_that_starts_gets_everything(learner: PublishClient) -> None:
    accounts = [make_account(settled=3, trained=256, stale=128)]
    report = make_report(1, episode_return_mean=2.5, episode_return_std=0.5)
    publish(learner, publish(learner, None, 0), 1, accounts=accounts, report=report)
    fetched = learner.fetch(with_training=True)
    assert fetched is not None
    assert fetched.snapshot.version == PolicyVersion(1, 1)
    assert fetched.training is not None
    np.testing.assert_array_equal(fetched.training["optimizer"], np.full(3, 1))
    assert (fetched.report, fetched.accounts) == (report, tuple(accounts))


def test_before_the_first_version_there_is_nothing_to_fetch(learner: PublishClient) -> None:
    assert learner.fetch() is None


def test_a_slow_watcher_skips_versions_and_nothing_queues_up_for_it(
    server: Paramserver, settings: Settings, learner: PublishClient
) -> None:
    big = {"weight": np.zeros(2 * MIB, np.float32)}  # 8 MiB; the transport buffers up to 16 MiB a stream
    base = publish(learner, None, 0, acting=big, training=None)
    responses = watch_raw(server, settings)
    first = next(response for response in responses if response.WhichOneof("kind") == "manifest")
    assert first.manifest.version.number == 0
    for updates in range(1, 31):
        base = publish(learner, base, updates, acting={"weight": big["weight"] + updates}, training=None)
    held = sum(record.nbytes for record in server.core._versions.held())
    assert held <= RECENT_BYTES + 2 * 8 * MIB + MIB
    seen = []
    for response in responses:
        if response.WhichOneof("kind") == "manifest":
            seen.append(response.manifest.version.number)
        if seen and seen[-1] == 30:
            break
    responses.cancel()
    assert len(seen) <= 5


def test_no_message_is_over_one_mebibyte(
    server: Paramserver, settings: Settings, learner: PublishClient
) -> None:
    publish(learner, None, 0, acting={"weight": np.zeros(MIB, np.float32)})
    sizes, left = [], 4 * MIB
    responses = watch_raw(server, settings)
    for response in responses:
        sizes.append(response.ByteSize())
        left -= len(response.chunk.data)
        if left <= 0:
            break
    responses.cancel()
    assert max(sizes) <= MIB
    assert max(sizes) > MIB // 2


def test_64_megabytes_arrive_and_health_answers_meanwhile(
    server: Paramserver, learner: PublishClient, watcher: SnapshotWatcher
) -> None:
    big = {"weight": np.arange(16 * MIB, dtype=np.float32)}
    channel = open_channel(server.server.address)
    health = health_pb2_grpc.HealthStub(channel)
    thread = threading.Thread(
        target=publish, args=(learner, None, 0), kwargs={"acting": big, "training": None}
    )
    thread.start()
    answers = 0
    while watcher.newest() is None:
        # The promise is one second; a crowded test machine gets ten.
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=10.0)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        answers += 1
        if watcher.wait_newer(None, 0.02) is not None:
            break
    thread.join(PATIENCE_S)
    channel.close()
    snapshot = watcher.newest()
    assert answers > 0
    assert snapshot is not None
    np.testing.assert_array_equal(snapshot.parameters["weight"], big["weight"])


def test_publishing_again_after_a_lost_answer_gets_the_same_version(learner: PublishClient) -> None:
    base = publish(learner, None, 0)
    assert publish(learner, None, 0) == base
    first = publish(learner, base, 1)
    assert publish(learner, base, 1) == first
    assert publish(learner, first, 2) == PolicyVersion(1, 2)


def test_a_learner_that_missed_a_version_is_told_to_fetch(learner: PublishClient) -> None:
    base = publish(learner, None, 0)
    publish(learner, base, 1)
    with pytest.raises(FencedError, match=r"started from version 1\.0, the newest is 1\.1: fetch it"):
        publish(learner, base, 2)


def test_after_a_restart_the_learner_goes_on_and_an_older_one_is_fenced(settings: Settings) -> None:
    with serving(settings) as first:
        learner = PublishClient(first.server.address, make_handshake(settings))
        base = publish(learner, None, 0)
        learner.close()
    with serving(settings) as second:
        learner = PublishClient(second.server.address, make_handshake(settings))
        assert publish(learner, base, 1) == PolicyVersion(2, 1)
        with pytest.raises(FencedError, match="fetch it"):
            publish(learner, base, 7)
        learner.close()


def test_versions_that_were_lost_are_not_taken_back_silently(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large versions between two checkpoints, server and learner both killed: the run says it goes back."""
    with serving(settings) as first:
        first.core._journal._max_bytes = 0
        learner = PublishClient(first.server.address, make_handshake(settings))
        base = publish(learner, None, 0)
        assert first.core.wait_saved(PATIENCE_S)
        for updates in range(1, 6):
            base = publish(learner, base, updates)
        learner.close()
        monkeypatch.setattr(first.core._checkpointer, "request", lambda _record: None)  # it is killed
    with serving(settings) as second:
        address = second.server.address
        survivor = SnapshotWatcher(address, make_handshake(settings, "sampler-0/0"))
        survivor.start()
        before = survivor.wait_newer(None, PATIENCE_S)
        assert before is not None
        assert before.version == PolicyVersion(1, 0)
        assert survivor.run_state().version in (None, PolicyVersion(1, 5))
        learner = PublishClient(address, make_handshake(settings))
        fetched = learner.fetch()
        assert fetched is not None
        assert fetched.snapshot.version == PolicyVersion(2, 6)
        assert fetched.report.updates == 0
        after = survivor.wait_newer(before.version, PATIENCE_S)
        assert after is not None
        assert (after.version, after.sha256) == (PolicyVersion(2, 6), before.sha256)
        assert publish(learner, fetched.snapshot.version, 1) == PolicyVersion(2, 7)
        learner.close()
        survivor.stop()
    told = [event for event in read_events(settings.run_dir) if event["kind"] == "rolled_back"]
    assert [(event["to"], event["lost_from"]) for event in told] == [("1.0", "1.5")]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_parameters_that_are_not_finite_are_refused_by_name_and_the_version_stays(
    learner: PublishClient, server: Paramserver, bad: float
) -> None:
    base = publish(learner, None, 0)
    with pytest.raises(InvalidDataError, match=r"policy/weight\[0\] is (nan|inf)"):
        publish(learner, base, 1, acting=make_parameters(bad))
    assert server.core.status().version == base
    assert publish(learner, base, 1) == PolicyVersion(1, 1)


def test_accounts_that_fall_are_refused(learner: PublishClient) -> None:
    base = publish(learner, None, 0, accounts=[make_account(settled=5)])
    with pytest.raises(InvalidDataError, match="account of sampler-0/0 fell: settled_through from 5 to 4"):
        publish(learner, base, 1, accounts=[make_account(settled=4)])


def test_another_configuration_is_refused_and_the_keys_are_named(
    server: Paramserver, settings: Settings
) -> None:
    other = Settings.of(
        make_config(run={"seed": 7, "stop": {"updates": 10**6}}), run_dir=settings.run_dir, run_id="run"
    )
    watcher = SnapshotWatcher(server.server.address, make_handshake(other, "sampler-3/0"))
    watcher.start()
    eventually(lambda: watcher.fatal is not None, "the watcher gives up")
    assert isinstance(watcher.fatal, HandshakeError)
    assert "refused sampler-3/0" in str(watcher.fatal)
    assert "run.seed" in str(watcher.fatal)
    watcher.stop()
    learner = PublishClient(server.server.address, make_handshake(other))
    with pytest.raises(HandshakeError, match=r"run\.seed"):
        publish(learner, None, 0)
    with pytest.raises(HandshakeError, match=r"run\.seed"):
        learner.fetch()
    learner.close()


def test_watchers_beyond_the_limit_are_refused_and_a_learner_still_gets_in(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, paramserver={"max_watchers": 2})
    with serving(settings) as server:
        watches = [watch_raw(server, settings) for _ in range(2)]
        for watch in watches:
            next(watch)  # its run state: it is served
        with pytest.raises(grpc.RpcError) as refused:
            next(watch_raw(server, settings))
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "paramserver.max_watchers" in refused.value.details()
        learner = PublishClient(server.server.address, make_handshake(settings))
        assert publish(learner, None, 0) == PolicyVersion(1, 0)
        watches.pop().cancel()
        late = SnapshotWatcher(server.server.address, make_handshake(settings))
        late.start()
        assert late.wait_newer(None, PATIENCE_S) is not None
        late.stop()
        learner.close()
        watches.pop().cancel()


def test_gradients_are_refused_in_a_sentence(server: Paramserver) -> None:
    stub = parameters_service_pb2_grpc.ParameterServiceStub(open_channel(server.server.address))
    with pytest.raises(grpc.RpcError) as refused:
        next(stub.PushGradients(iter([])))
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "publishes its versions itself" in refused.value.details()


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda requests: requests[1:], grpc.StatusCode.INVALID_ARGUMENT),
        (lambda requests: requests[:-1], grpc.StatusCode.INVALID_ARGUMENT),
        (lambda requests: [*requests, requests[-1]], grpc.StatusCode.INVALID_ARGUMENT),
        (lambda requests: [], grpc.StatusCode.INVALID_ARGUMENT),
        (lambda requests: [requests[0], _flipped(requests[1]), *requests[2:]], grpc.StatusCode.DATA_LOSS),
    ],
    ids=["no header", "cut short", "a piece too many", "nothing", "altered"],
)
def test_a_publish_that_breaks_the_protocol_is_refused(
    server: Paramserver, settings: Settings, spoil: Any, code: grpc.StatusCode
) -> None:
    blob = Blob.encode(make_parameters(0, size=MIB))
    header = parameters_pb2.PublishHeader(
        handshake=make_handshake(settings).to_proto(), blobs=[manifest_of(ACTING, blob)]
    )
    requests = [parameters_pb2.PublishVersionRequest(header=header)]
    requests += [parameters_pb2.PublishVersionRequest(chunk=chunk) for chunk in chunks_of(ACTING, blob)]
    stub = parameters_service_pb2_grpc.ParameterServiceStub(open_channel(server.server.address))
    with pytest.raises(grpc.RpcError) as refused:
        stub.PublishVersion(iter(spoil(requests)))
    assert refused.value.code() == code
    assert server.core.status().version is None


def _flipped(request: parameters_pb2.PublishVersionRequest) -> parameters_pb2.PublishVersionRequest:
    changed = parameters_pb2.PublishVersionRequest()
    changed.CopyFrom(request)
    changed.chunk.data = bytes([request.chunk.data[0] ^ 1]) + request.chunk.data[1:]
    return changed
