"""What a learner can't bring, and who can't join: refused in words, and the others go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from joining import FIRST, LAYOUT, START, Together, round_settings, together, values_of
from paramserving import PATIENCE_S, make_account, make_config, make_handshake

from headrace.clients import contribution_messages, messages
from headrace.clients.blobs import chunks_of
from headrace.errors import FencedError, HandshakeError
from headrace.events import read_events
from headrace.rpc.channel import open_channel
from headrace.sync.contribution import DELTA, Contribution
from headrace.sync.layout import Layout
from headrace.types import PolicyVersion
from headrace.v1 import parameters_pb2, parameters_service_pb2_grpc
from services.paramserver.config import Settings

Request = parameters_pb2.PushGradientsRequest


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused_by_name_and_the_version_stays(
    tmp_path: Path, bad: float
) -> None:
    with together(round_settings(tmp_path, learners=1)) as run:
        member = run.join(0, incarnation=77)
        vector = START.copy()
        vector[4] = bad
        result = member.bring(member.contribution(vector))
        assert (result.outcome, result.version) == ("invalid", FIRST)
        assert result.detail == f"policy/weight[1, 1] is {bad}"
        (event,) = [event for event in read_events(tmp_path) if event["kind"] == "contribution_invalid"]
        told = {key: event[key] for key in ("learner", "incarnation", "sequence", "reason", "base")}
        assert told == {
            "learner": "learner-0",
            "incarnation": 77,
            "sequence": 1,
            "reason": result.detail,
            "base": "1.0",
        }
        assert run.newest().report.updates == 0
        assert member.bring(member.contribution(START)).version == PolicyVersion(1, 1)


MOMENTS = {"count": np.array(2.0), "mean": np.zeros(3), "m2": np.ones(3)}


def deltas(**changes: np.ndarray | None) -> dict[str, np.ndarray]:
    columns = {**MOMENTS, **changes}
    return {f"{DELTA}normalizer//{name}": array for name, array in columns.items() if array is not None}


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"kind": "gradient"}, "kind gradient, where values or change or none was expected"),
        (
            {"state": {"exploration/epsilon": np.array(np.nan, np.float32)}},
            "exploration/epsilon is not finite",
        ),
        ({"state": {"colour": np.zeros(3)}}, "colour is not part of this run's versions"),
        ({"state": {"normalizer//mean": np.zeros(4)}}, "normalizer//mean is float64[4], expected float64[3]"),
        ({"state": {"exploration/epsilon": np.array(1.0)}}, "is float64[], expected float32[]"),
        ({"state": deltas(count=None)}, "came without delta/normalizer//count"),
        ({"state": deltas(m2=np.ones(2))}, "delta/normalizer//m2 is float64[2], expected float64[3]"),
        (
            {"state": {f"{DELTA}exploration/epsilon": np.array(1.0, np.float32)}},
            "came without delta/exploration/",
        ),
        ({"learning_rate": np.nan}, "the learning rate is nan"),
    ],
    ids=[
        "kind",
        "state not finite",
        "unknown",
        "shape",
        "type",
        "no count",
        "delta shape",
        "no moments",
        "rate",
    ],
)
def test_what_fits_no_version_is_refused_and_the_others_round_closes(
    tmp_path: Path, fields: dict[str, Any], detail: str
) -> None:
    with together(round_settings(tmp_path)) as run:
        good, bad = run.join(0), run.join(1)
        waiting = run.begin(good, good.contribution(START + 1))
        result = bad.bring(bad.contribution(START, **fields))
        assert (result.outcome, result.version) == ("invalid", FIRST)
        assert detail in result.detail
        assert bad.bring(bad.contribution(START + 1)).outcome == "applied"
        assert waiting.result(PATIENCE_S).outcome == "applied"
        np.testing.assert_array_equal(values_of(run.newest()), START + 1)


def test_values_are_refused_where_gradients_are_expected(tmp_path: Path) -> None:
    with together(round_settings(tmp_path, algorithm="a2c", learners=1)) as run:
        member = run.join(0)
        result = member.bring(member.contribution(START))
        assert (result.outcome, "where gradient was expected" in result.detail) == ("invalid", True)


def test_a_round_that_no_version_can_be_made_of_is_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    with together(round_settings(tmp_path)) as run:
        first, second = run.join(0), run.join(1)
        largest = np.full(LAYOUT.size, np.finfo(np.float32).max, np.float32)
        versions = []
        for change, outcome in ((largest, "applied"), (largest, "invalid"), (-largest, "applied")):
            waiting = run.begin(first, first.contribution(change, kind="change"))
            result = second.bring(second.contribution(change, kind="change"))
            assert result.outcome == waiting.result(PATIENCE_S).outcome == outcome
            versions.append(result.version.number)
        assert versions == [1, 1, 2]
        assert not values_of(run.newest()).any()


def test_a_second_process_with_the_same_name_ends_the_first(tmp_path: Path) -> None:
    with together(round_settings(tmp_path, learners=1)) as run:
        first = run.join(0, incarnation=1)
        second = run.join(0, incarnation=2)
        with pytest.raises(HandshakeError, match="another process has joined as learner-0"):
            first.bring(first.contribution(START + 1))
        assert second.bring(second.contribution(START)).version == PolicyVersion(1, 1)
        assert run.metric("learners") == 1


def test_a_second_process_ends_the_first_also_while_that_waits_and_its_work_is_void(tmp_path: Path) -> None:
    with together(round_settings(tmp_path)) as run:
        first, other = run.join(0, incarnation=1), run.join(1)
        waiting = run.begin(first, first.contribution(START + 1))
        second = run.join(0, incarnation=2)
        with pytest.raises(HandshakeError, match="another process has joined as learner-0"):
            waiting.result(PATIENCE_S)
        waiting = run.begin(second, second.contribution(START))
        other.bring(other.contribution(START))
        assert waiting.result(PATIENCE_S).outcome == "applied"
        np.testing.assert_array_equal(values_of(run.newest()), START)


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        (Layout(("policy/weight",), ((2, 3),)), "has other parameters than the learners of this run"),
        (Layout(("policy/weight", "policy/bias"), ((3, 2), (2,))), "has other parameters"),
    ],
    ids=["fewer", "another shape"],
)
def test_a_learner_of_other_parameters_is_refused(tmp_path: Path, layout: Layout, sentence: str) -> None:
    with together(round_settings(tmp_path)) as run:
        run.join(0)
        other = run.connect(1, layout=layout)
        with pytest.raises(HandshakeError, match=sentence):
            other.join()


def test_a_first_learner_of_other_parameters_than_the_version_is_refused(tmp_path: Path) -> None:
    with together(round_settings(tmp_path)) as run:
        other = run.connect(0, layout=Layout(("policy/weight",), ((7,),)))
        with pytest.raises(
            HandshakeError, match=r"does not fit what the learner learns: policy/weight has shape"
        ):
            other.join()
        assert run.join(1).version == FIRST


def test_a_learner_of_another_configuration_is_refused_and_the_keys_are_named(tmp_path: Path) -> None:
    settings = round_settings(tmp_path)
    other = Settings.of(
        make_config(run={"seed": 7, "stop": {"updates": 10**6}}), run_dir=tmp_path, run_id="run"
    )
    with together(settings) as run:
        run.settings = other
        with pytest.raises(HandshakeError, match=r"run\.seed"):
            run.connect(0).join()


def test_before_there_is_a_version_a_learner_is_told_to_publish_one(tmp_path: Path) -> None:
    with together(round_settings(tmp_path), publish=False) as run:
        with pytest.raises(FencedError, match="publish the version you have first"):
            run.connect(0).join()


def hello(run: Together) -> Request:
    return Request(
        hello=parameters_pb2.LearnerHello(
            handshake=make_handshake(run.settings).to_proto(),
            learner_id="learner-0",
            incarnation=1,
            layout=contribution_messages.layout_to_proto(LAYOUT),
            have=messages.version_to_proto(FIRST),
        )
    )


def messages_of(contribution: Contribution) -> list[Request]:
    header, blobs = contribution_messages.contribution_to_proto(contribution, "float32")
    chunks = [Request(chunk=chunk) for kind, blob in blobs.items() for chunk in chunks_of(kind, blob)]
    return [Request(contribution=header), *chunks]


def altered(request: Request) -> Request:
    changed = Request()
    changed.CopyFrom(request)
    changed.chunk.data = bytes([request.chunk.data[0] ^ 1]) + request.chunk.data[1:]
    return changed


GOOD = Contribution(sequence=1, base=FIRST, kind="values", vector=START, num_samples=1)


@pytest.mark.parametrize(
    ("spoil", "code", "sentence"),
    [
        (lambda greet, sent: sent, grpc.StatusCode.INVALID_ARGUMENT, "must begin with its hello"),
        (lambda greet, sent: [greet, greet], grpc.StatusCode.INVALID_ARGUMENT, "begin with its header"),
        (lambda greet, sent: [greet, *sent[1:]], grpc.StatusCode.INVALID_ARGUMENT, "begin with its header"),
        (lambda greet, sent: [greet, *sent[:-1]], grpc.StatusCode.INVALID_ARGUMENT, "ended before its blobs"),
        (lambda greet, sent: [greet, *sent[:-1], sent[0]], grpc.StatusCode.INVALID_ARGUMENT, "ended before"),
        (lambda greet, sent: [greet, *sent[:-1], altered(sent[-1])], grpc.StatusCode.DATA_LOSS, "sha256"),
    ],
    ids=["no hello", "two hellos", "no header", "truncated", "a header in the middle", "altered"],
)
def test_a_stream_that_breaks_the_protocol_is_ended_in_words_and_nothing_of_it_counts(
    tmp_path: Path,
    spoil: Callable[[Request, list[Request]], list[Request]],
    code: grpc.StatusCode,
    sentence: str,
) -> None:
    with together(round_settings(tmp_path)) as run, open_channel(run.address) as channel:
        stub = parameters_service_pb2_grpc.ParameterServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            for _ in stub.PushGradients(iter(spoil(hello(run), messages_of(GOOD)))):
                pass
        assert refused.value.code() == code
        assert sentence in refused.value.details()
        assert run.server.core.status().version == FIRST


@pytest.mark.parametrize("size", [LAYOUT.size - 1, LAYOUT.size + 1, 0])
def test_a_vector_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    with together(round_settings(tmp_path)) as run, open_channel(run.address) as channel:
        stub = parameters_service_pb2_grpc.ParameterServiceStub(channel)
        requests = [hello(run), *messages_of(replace(GOOD, vector=np.zeros(size, np.float32)))]
        with pytest.raises(grpc.RpcError) as refused:
            for _ in stub.PushGradients(iter(requests)):
                pass
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert f"a vector of {4 * size} bytes, expected {LAYOUT.size} numbers" in refused.value.details()


def test_a_contribution_said_again_on_the_same_stream_counts_once(tmp_path: Path) -> None:
    with together(round_settings(tmp_path, learners=1)) as run, open_channel(run.address) as channel:
        stub = parameters_service_pb2_grpc.ParameterServiceStub(channel)
        requests = [hello(run), *messages_of(GOOD), *messages_of(GOOD)]
        answers = [
            one.result for one in stub.PushGradients(iter(requests)) if one.WhichOneof("kind") == "result"
        ]
        assert [answer.outcome for answer in answers] == ["joined", "applied", "applied"]
        assert [answer.version.number for answer in answers] == [0, 1, 1]
        assert run.metric("gradients_total", outcome="applied") == 1


def test_a_version_that_the_learner_was_never_given_is_stale_and_its_accounts_do_not_enter(
    tmp_path: Path,
) -> None:
    with together(round_settings(tmp_path, learners=1)) as run:
        member = run.join(0)
        of_a_dead_epoch = member.contribution(
            START + 1, base=PolicyVersion(0, 0), accounts=(make_account(settled=4, trained=32),)
        )
        assert member.bring(of_a_dead_epoch).outcome == "stale"
        newest = run.newest()
        assert (newest.snapshot.version, newest.accounts) == (FIRST, ())
