"""A relay over real channels: whoever is pointed at one can't tell it from the parameter server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paramserving import (
    PATIENCE_S,
    eventually,
    make_config,
    make_handshake,
    make_parameters,
    make_report,
    make_settings,
    serving,
)
from relaying import relaying, watching_raw

from headrace.clients import messages
from headrace.clients.parameters import PublishClient, SnapshotWatcher
from headrace.clients.rounds import RoundClient
from headrace.clients.run import RunClient
from headrace.errors import HandshakeError, InvalidDataError
from headrace.rpc.channel import open_channel
from headrace.sync.contribution import Contribution
from headrace.sync.layout import Layout
from headrace.types import Evaluation, PolicyVersion
from headrace.v1 import parameters_service_pb2_grpc
from services.paramserver.assembly import Paramserver
from services.paramserver.config import Settings
from services.paramserver.relay.assembly import Relay

MIB = 2**20


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


@pytest.fixture
def primary(settings: Settings) -> Iterator[Paramserver]:
    with serving(settings) as running:
        yield running


@pytest.fixture
def relay(primary: Paramserver, settings: Settings) -> Iterator[Relay]:
    with relaying(settings, primary.server.address) as running:
        yield running


@pytest.fixture
def learner(primary: Paramserver, settings: Settings) -> Iterator[PublishClient]:
    client = PublishClient(primary.server.address, make_handshake(settings))
    yield client
    client.close()


@pytest.fixture
def watch(settings: Settings) -> Iterator[Any]:
    """Watches an address until the test is over."""
    watchers: list[SnapshotWatcher] = []

    def start(address: str, handshake: Any = None) -> SnapshotWatcher:
        watchers.append(SnapshotWatcher(address, handshake or make_handshake(settings, "sampler-0/0")))
        watchers[-1].start()
        return watchers[-1]

    yield start
    for watcher in watchers:
        watcher.stop()


def publish(
    learner: PublishClient, base: PolicyVersion | None, updates: int, acting: Any = None
) -> PolicyVersion:
    parameters = make_parameters(updates) if acting is None else acting
    return learner.publish(base, parameters, None, make_report(updates), [], timeout_s=PATIENCE_S).version


def metric(relay: Relay, name: str) -> float:
    value = relay.metrics.registry.get_sample_value(f"headrace_paramserver_{name}")
    assert value is not None
    return value


def test_a_watcher_is_asked_to_look_around_now_and_then_and_misses_nothing(
    primary: Paramserver, settings: Settings, learner: PublishClient, watch: Any
) -> None:
    with relaying(settings, primary.server.address, watch_age_s=0.02) as relay:
        watcher = watch(relay.address)
        base, streams = None, set()
        for updates in range(20):
            report = make_report(updates)
            base = learner.publish(
                base, make_parameters(updates), None, report, [], timeout_s=PATIENCE_S
            ).version
            eventually(lambda wanted=base: _has(watcher, wanted), "the watcher has the newest version")
            streams.add(id(watcher._channel))
        assert len(streams) > 1  # it has connected anew meanwhile


def test_what_is_published_is_what_a_watcher_of_a_relay_acts_with(
    learner: PublishClient, relay: Relay, watch: Any, settings: Settings
) -> None:
    parameters = {"weight": np.arange(MIB, dtype=np.float32), "scale": np.float32(2).reshape(())}
    version = publish(learner, None, 0, parameters)
    snapshot = watch(relay.address).wait_newer(None, PATIENCE_S)
    assert snapshot is not None
    assert (snapshot.version, snapshot.config_digest) == (version, settings.config_digest)
    assert snapshot.parameters.keys() == parameters.keys()
    for name, array in parameters.items():
        np.testing.assert_array_equal(snapshot.parameters[name], array)


def test_every_newer_version_comes_through_two_levels(
    learner: PublishClient, relay: Relay, watch: Any, settings: Settings
) -> None:
    with relaying(settings, relay.address, index=1) as second:
        watcher = watch(second.address)
        have, base = None, None
        for updates in range(5):
            base = publish(learner, base, updates)
            snapshot = watcher.wait_newer(have, PATIENCE_S)
            assert snapshot is not None
            assert snapshot.version == base
            have = base


def test_the_end_of_the_run_comes_through(primary: Paramserver, relay: Relay, watch: Any) -> None:
    watcher = watch(relay.address)
    eventually(lambda: watcher.told is not None, "the relay says where the run is")
    primary.core.stop("interrupted", "somebody asked")
    eventually(lambda: watcher.run_state().ended, "the watcher hears of the end")
    assert (watcher.run_state().phase, watcher.run_state().reason) == ("interrupted", "somebody asked")


def test_before_it_has_heard_of_the_run_a_relay_says_nothing_and_does_not_serve(
    settings: Settings, watch: Any
) -> None:
    with relaying(settings, "127.0.0.1:1") as lonely:
        watcher = watch(lonely.address)
        eventually(lambda: metric(lonely, "watchers") == 1, "the relay has taken the watch")
        assert watcher.told is None
        assert not serves(lonely.address)


def test_health_says_when_a_relay_has_heard_of_the_run(relay: Relay) -> None:
    eventually(lambda: serves(relay.address), "the relay serves")


def serves(address: str) -> bool:
    with open_channel(address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="headrace.v1.ParameterService"), timeout=PATIENCE_S
        )
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def test_a_slow_watcher_skips_versions_and_few_are_in_memory(
    learner: PublishClient, relay: Relay, settings: Settings, watch: Any
) -> None:
    big = np.zeros(8 * MIB, np.float32)  # 32 MiB; the transport buffers up to 16 MiB a stream
    base = publish(learner, None, 0, {"weight": big})
    quick = watch(relay.address)
    with watching_raw(relay.address, settings) as responses:
        first = next(response for response in responses if response.WhichOneof("kind") == "manifest")
        assert first.manifest.version.number == 0
        for updates in range(1, 6):
            base = publish(learner, base, updates, {"weight": big + updates})
            assert quick.wait_newer(PolicyVersion(1, updates - 1), PATIENCE_S) is not None
        eventually(lambda: metric(relay, "held_bytes") <= 2 * (big.nbytes + MIB), "what nobody reads is gone")
        seen = []
        for response in responses:
            if response.WhichOneof("kind") == "manifest":
                seen.append(response.manifest.version.number)
                if seen[-1] == 5:
                    break
    assert seen == [5]


def test_a_watcher_is_not_sent_what_it_has(
    learner: PublishClient, relay: Relay, settings: Settings, watch: Any
) -> None:
    base = publish(learner, None, 0)
    assert watch(relay.address).wait_newer(None, PATIENCE_S) is not None
    with watching_raw(relay.address, settings, have=messages.version_to_proto(base)) as responses:
        assert next(responses).WhichOneof("kind") == "run_state"
        newer = publish(learner, base, 1)
        manifest = next(r.manifest for r in responses if r.WhichOneof("kind") == "manifest")
        assert messages.version_from_proto(manifest.version) == newer


def test_another_configuration_is_refused_in_the_words_of_the_parameter_server(
    primary: Paramserver, relay: Relay, settings: Settings, watch: Any
) -> None:
    other = Settings.of(
        make_config(run={"seed": 7, "stop": {"updates": 10**6}}), run_dir=settings.run_dir, run_id="run"
    )
    said = []
    for address in (primary.server.address, relay.address):
        watcher = watch(address, make_handshake(other, "sampler-3/0"))
        eventually(lambda watcher=watcher: watcher.fatal is not None, "the watcher gives up")
        assert isinstance(watcher.fatal, HandshakeError)
        said.append(str(watcher.fatal))
    assert said[0] == said[1]
    assert "refused sampler-3/0" in said[0]
    assert "run.seed" in said[0]


def test_a_relay_of_another_run_ends_with_the_reason(primary: Paramserver, tmp_path: Path) -> None:
    other = Settings.of(make_config(), run_dir=tmp_path, run_id="another")
    with relaying(other, primary.server.address) as stranger:

        def refused() -> bool:
            try:
                stranger.on_time()
            except HandshakeError as error:
                return "run id 'another'" in str(error)
            return False

        eventually(refused, "the relay says that it was refused")


def test_watchers_beyond_the_limit_are_refused(primary: Paramserver, settings: Settings) -> None:
    with relaying(settings, primary.server.address, max_watchers=1) as small:
        with watching_raw(small.address, settings) as first:
            next(first)
            with watching_raw(small.address, settings) as second:
                with pytest.raises(grpc.RpcError) as refused:
                    next(second)
                assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                assert "paramserver.max_watchers" in refused.value.details()
        eventually(lambda: metric(small, "watchers") == 0, "the place is free again")
        with watching_raw(small.address, settings) as third:
            next(third)


def test_a_learner_pointed_at_a_relay_trains_as_at_the_parameter_server(
    relay: Relay, settings: Settings, watch: Any
) -> None:
    learner = PublishClient(relay.address, make_handshake(settings))
    try:
        assert learner.fetch(timeout_s=PATIENCE_S) is None
        big = {"weight": np.arange(2 * MIB, dtype=np.float32)}
        base = publish(learner, None, 0, big)
        fetched = learner.fetch(timeout_s=PATIENCE_S)
        assert fetched is not None
        np.testing.assert_array_equal(fetched.snapshot.parameters["weight"], big["weight"])
        with pytest.raises(InvalidDataError, match=r"policy/weight\[0\] is nan"):
            publish(learner, base, 1, make_parameters(np.nan))
        assert watch(relay.address).wait_newer(None, PATIENCE_S) is not None
    finally:
        learner.close()


def test_an_evaluator_and_a_launcher_pointed_at_a_relay_are_heard_by_the_parameter_server(
    learner: PublishClient, primary: Paramserver, relay: Relay, settings: Settings
) -> None:
    base = publish(learner, None, 0)
    run = RunClient(relay.address, make_handshake(settings, "evaluator-0"))
    try:
        assert run.begin_evaluation(base, timeout_s=PATIENCE_S)
        assert run.report_evaluation(Evaluation(base, 3.0, 0.5, 10, 0), timeout_s=PATIENCE_S)
        assert run.state(timeout_s=PATIENCE_S) == primary.core.view()
        run.stop("interrupted", "enough", timeout_s=PATIENCE_S)
    finally:
        run.close()
    assert primary.core.status().reason == "enough"


def test_learners_pointed_at_a_relay_meet_in_a_round(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, learner={"count": 2}, sync={"exchange": "changes"})
    layout = Layout(("policy/weight",), ((8,),))
    with ExitStack() as stack:
        primary = stack.enter_context(serving(settings))
        address = stack.enter_context(relaying(settings, primary.server.address)).address
        first = PublishClient(address, make_handshake(settings))
        stack.callback(first.close)
        base = publish(first, None, 0)
        clients = []
        for index in range(2):
            name = f"learner-{index}"
            client = RoundClient(
                address,
                make_handshake(settings, name),
                learner_id=name,
                incarnation=0,
                layout=layout,
                have=base,
            )
            stack.callback(client.close)
            client.start()
            assert client.join(timeout_s=PATIENCE_S) is not None
            clients.append(client)
        moved = [
            Contribution(0, base, "values", np.full(8, float(2 + index), np.float32), num_samples=1)
            for index in range(2)
        ]
        with ThreadPoolExecutor(2) as pool:
            both = [
                pool.submit(client.exchange, own, timeout_s=PATIENCE_S)
                for client, own in zip(clients, moved, strict=True)
            ]
            answers = [future.result() for future in both]
        for answer in answers:
            assert answer is not None
            assert (answer.outcome, answer.version.number) == ("applied", base.number + 1)
            np.testing.assert_array_equal(answer.values, np.full(8, 2.5, np.float32))


def test_a_gradient_that_is_not_taken_is_refused_in_the_same_sentence(
    primary: Paramserver, relay: Relay
) -> None:
    said = []
    for address in (primary.server.address, relay.address):
        with open_channel(address) as channel:
            stub = parameters_service_pb2_grpc.ParameterServiceStub(channel)
            with pytest.raises(grpc.RpcError) as refused:
                list(stub.PushGradients(iter([])))
            said.append((refused.value.code(), refused.value.details()))
    assert said[0] == said[1]


def test_without_upstream_a_call_that_needs_it_is_unavailable(settings: Settings) -> None:
    with relaying(settings, "127.0.0.1:1") as lonely, open_channel(lonely.address) as channel:
        stub = parameters_service_pb2_grpc.ParameterServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.PublishVersion(iter([]))
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_request_that_is_none_is_refused(relay: Relay) -> None:
    with open_channel(relay.address) as channel:
        call = channel.unary_stream("/headrace.v1.ParameterService/WatchVersions")(b"\xff\xff")
        with pytest.raises(grpc.RpcError) as refused:
            next(iter(call))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def _has(watcher: SnapshotWatcher, version: PolicyVersion) -> bool:
    newest = watcher.newest()
    return newest is not None and newest.version == version
