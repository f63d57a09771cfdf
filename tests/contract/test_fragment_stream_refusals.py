"""What the learner's door refuses, with which status and in which words; and that it stays healthy."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pipe import (
    DIGEST,
    FRAGMENT_BYTES,
    OWN,
    SAMPLER,
    WAIT_S,
    B,
    Learner,
    T,
    make_config,
    make_fragment,
    make_sender,
)

from headrace.codec import encode_fragment
from headrace.codec.control import read_release, write_release
from headrace.errors import CodecError, ConfigurationError, HandshakeError, InvalidDataError
from headrace.flow.messages import Release
from headrace.rpc.channel import MAX_MESSAGE_BYTES, open_channel
from headrace.rpc.fragments import SERVICE
from headrace.rpc.handshake import Handshake
from headrace.rpc.server import serve
from headrace.types import SamplerIdentity
from headrace.v1 import common_pb2, trajectory_pb2

METHOD = f"/{SERVICE}/StreamFragments"


@pytest.fixture
def learner() -> Iterator[Learner]:
    own = Handshake("run-1", DIGEST, '{"observation":1}', "learner-0", json.dumps({"a": {"b": 1}, "c": 2}))
    learner = Learner(make_config(), own=own, max_streams=3, handshake_s=0.3)
    yield learner
    learner.close()


@pytest.fixture
def channel(learner: Learner) -> Iterator[grpc.Channel]:
    with open_channel(learner.server.address) as channel:
        yield channel


def is_healthy(channel: grpc.Channel) -> bool:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=1.0)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def open_request(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "handshake": Handshake("run-1", DIGEST).to_proto(),
        "sampler": common_pb2.SamplerIdentity(sampler_id="sampler-0", incarnation=1),
        "fragment_bytes": FRAGMENT_BYTES,
        "fragment_transitions": T * B,
    }
    message = trajectory_pb2.OpenStream(**{**fields, **changes})
    return trajectory_pb2.StreamFragmentsRequest(open=message).SerializeToString()


class Stream:
    """A raw client stream: bytes out, responses in."""

    def __init__(self, channel: grpc.Channel, *messages: bytes) -> None:
        self._messages = list(messages)
        self._more = threading.Condition()
        self._done = False
        call = channel.stream_stream(
            METHOD, response_deserializer=trajectory_pb2.StreamFragmentsResponse.FromString
        )
        self.call: Any = call(self._requests(), timeout=WAIT_S)

    def _requests(self) -> Iterator[bytes]:
        while True:
            with self._more:
                self._more.wait_for(lambda: bool(self._messages) or self._done, WAIT_S)
                if not self._messages:
                    return
                message = self._messages.pop(0)
            yield message

    def send(self, *messages: bytes) -> None:
        with self._more:
            self._messages += messages
            self._more.notify()

    def receive(self, kind: str) -> Any:
        """The next response of a kind."""
        return next(getattr(response, kind) for response in self.call if response.WhichOneof("kind") == kind)

    def status(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ends."""
        with pytest.raises(grpc.RpcError):
            for _ in self.call:
                pass
        with self._more:
            self._done = True
            self._more.notify()
        return self.call.code(), self.call.details()


def refused_sender(learner: Learner, theirs: Handshake, **changes: Any) -> str:
    sender = make_sender(learner.server.address, handshake=theirs, **changes)
    assert sender.acquire(acting_version=lambda: 0, timeout_s=WAIT_S) is None
    assert isinstance(sender.fatal, HandshakeError)
    sender.close()
    return str(sender.fatal)


def test_another_configuration_is_refused_and_its_keys_are_named(learner: Learner) -> None:
    theirs = Handshake("run-1", "f" * 16, peer="sampler-0/1", config_json=json.dumps({"a": {"b": 7}, "c": 2}))
    sentence = refused_sender(learner, theirs)
    assert "sampler-0/1" in sentence
    assert "a.b differs" in sentence
    assert "c" not in sentence.split("a.b differs")[1]


def test_another_run_protocol_and_space_are_refused_in_words(learner: Learner) -> None:
    theirs = Handshake("run-2", DIGEST, '{"observation":2}', protocol_version=99)
    sentence = refused_sender(learner, theirs)
    assert "run id 'run-2' against 'run-1'" in sentence
    assert "wire protocol 99 against 1" in sentence
    assert "observation or action space" in sentence


def test_an_older_incarnation_is_refused(learner: Learner, channel: grpc.Channel) -> None:
    newer = Stream(
        channel, open_request(sampler=common_pb2.SamplerIdentity(sampler_id="sampler-0", incarnation=2))
    )
    newer.receive("welcome")
    assert "superseded by incarnation 2" in refused_sender(learner, OWN)
    newer.call.cancel()


def test_a_configuration_that_is_not_json_is_refused_without_a_crash(learner: Learner) -> None:
    for text in ("not json", "[1]", "[" * 100_000):
        assert "configuration" in refused_sender(learner, Handshake("run-1", "f" * 16, config_json=text))


def test_a_peer_that_says_nothing_is_cut(channel: grpc.Channel) -> None:
    code, details = Stream(channel).status()
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "no OpenStream" in details


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([encode_fragment(make_fragment(0), "protobuf", 2**20)[0]], "first message"),
        ([open_request(), open_request()], "opened once"),
        ([open_request(sampler=common_pb2.SamplerIdentity())], "sampler_id"),
        ([open_request(sampler=common_pb2.SamplerIdentity(sampler_id="x" * 129))], "sampler_id"),
        ([open_request(), write_release(Release(0))], "no replay here"),
        ([b"\xff\xff"], "cut off"),
        ([b""], "cut off"),
        (
            [
                open_request(),
                encode_fragment(make_fragment(0, sampler=SamplerIdentity("b", 1)), "protobuf", 2**20)[0],
            ],
            "on the stream of",
        ),
    ],
    ids=["no-open", "two-opens", "no-name", "long-name", "release", "garbage", "empty", "foreign-fragment"],
)
def test_a_broken_contract_is_invalid_argument_in_words(
    channel: grpc.Channel, messages: list[bytes], words: str
) -> None:
    code, details = Stream(channel, *messages).status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert words in details
    assert is_healthy(channel)


def test_more_than_was_granted_is_invalid_argument(learner: Learner, channel: grpc.Channel) -> None:
    stream = Stream(channel, open_request())
    stream.receive("grant")
    for sequence in range(2**20 // FRAGMENT_BYTES + 2):  # the capacity, and more
        stream.send(encode_fragment(make_fragment(sequence), "protobuf", 2**20)[0])
    code, details = stream.status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "credit" in details
    assert learner.intake.fill_ratio <= 1.0


def test_an_altered_payload_is_refused_as_checksum_and_the_stream_goes_on(channel: grpc.Channel) -> None:
    (data,) = encode_fragment(make_fragment(0), "protobuf", 2**20, checksum=True)
    stream = Stream(channel, open_request(), data[:-1] + bytes([data[-1] ^ 1]))
    refused = stream.receive("refused")
    assert (refused.sequence, refused.reason) == (0, "checksum")
    stream.send(*encode_fragment(make_fragment(1), "protobuf", 2**20, checksum=True))
    assert is_healthy(channel)
    stream.call.cancel()


def test_a_fragment_of_another_configuration_is_refused(channel: grpc.Channel) -> None:
    stream = Stream(
        channel,
        open_request(),
        *encode_fragment(make_fragment(0, config_digest="f" * 16), "protobuf", 2**20),
    )
    assert stream.receive("refused").reason == "foreign_config"
    stream.call.cancel()


def test_health_answers_and_the_next_stream_is_refused_when_all_are_taken(
    learner: Learner, channel: grpc.Channel
) -> None:
    streams = []
    for index in range(3):
        sampler = common_pb2.SamplerIdentity(sampler_id=f"s{index}", incarnation=1)
        streams.append(Stream(channel, open_request(sampler=sampler)))
        streams[-1].receive("welcome")
    for _ in range(40):  # more than there are worker threads
        code, details = Stream(channel, open_request()).status()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "all 3 streams" in details
        assert is_healthy(channel)
    for stream in streams:
        stream.call.cancel()
    # A place that is free again can be taken.
    sender = make_sender(learner.server.address)
    assert sender.acquire(acting_version=lambda: 0, timeout_s=WAIT_S) is not None
    sender.close()


def test_an_oversized_message_is_refused(learner: Learner, channel: grpc.Channel) -> None:
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(learner.server.address, options) as wide:
        code, _ = Stream(wide, open_request(), bytes(MAX_MESSAGE_BYTES + 1)).status()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert is_healthy(channel)


def test_random_bytes_on_the_port_leave_it_healthy(learner: Learner, channel: grpc.Channel) -> None:
    rng = np.random.default_rng(5)
    for size in (0, 1, 24, 1000, 100_000):
        with socket.create_connection(("127.0.0.1", learner.server.port), timeout=5.0) as raw:
            try:
                raw.sendall(rng.bytes(size))
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(65536):
                    pass
            except OSError:
                pass  # it may hang up on us in the middle
        assert is_healthy(channel)


def test_random_messages_on_streams_leave_it_healthy(channel: grpc.Channel) -> None:
    rng = np.random.default_rng(6)
    for size in (1, 10, 100, 10_000):
        code, _ = Stream(channel, rng.bytes(size)).status()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert is_healthy(channel)


def test_a_draining_learner_says_unavailable(learner: Learner, channel: grpc.Channel) -> None:
    opened = Stream(channel, open_request())
    opened.receive("welcome")
    learner.intake.stop()
    assert opened.status() == (grpc.StatusCode.UNAVAILABLE, "the learner is draining")
    assert Stream(channel, open_request()).status()[0] is grpc.StatusCode.UNAVAILABLE


def test_a_sender_whose_messages_are_refused_again_and_again_gives_up(learner: Learner) -> None:
    sender = make_sender(learner.server.address, identity=SAMPLER)
    assert sender.acquire(acting_version=lambda: 0, timeout_s=WAIT_S) is not None
    sender.send(make_fragment(0, sampler=SamplerIdentity("somebody-else", 1)))
    assert not sender.drain("done", WAIT_S)
    assert isinstance(sender.fatal, InvalidDataError)
    assert "somebody-else" in str(sender.fatal)
    sender.close()


def test_a_taken_port_is_named_with_its_key(learner: Learner) -> None:
    with pytest.raises(ConfigurationError) as caught:
        serve(address=learner.server.address, max_streams=1, setting="network.learner_port")
    assert str(caught.value).startswith(f"network.learner_port: {learner.server.address} is already in use")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:70000", ":1", "a:b"])
def test_an_address_that_is_none_is_named(address: str) -> None:
    with pytest.raises(ConfigurationError, match="is not host:port"):
        serve(address=address, max_streams=1)


def test_an_address_of_another_machine_is_refused_in_words() -> None:
    with pytest.raises(ConfigurationError, match=r"can't listen on 192\.0\.2\.1:0"):
        serve(address="192.0.2.1:0", max_streams=1)


def test_priorities_that_are_no_floats_are_refused() -> None:
    with pytest.raises(CodecError, match="float32"):
        read_release(trajectory_pb2.Release(through=1, priorities=b"abc"))
    again = read_release(trajectory_pb2.Release(through=1, priorities=np.float32([1, 2]).tobytes()))
    assert again.priorities is not None
    np.testing.assert_array_equal(again.priorities, [1.0, 2.0])
