"""One learner's stream: hello, then contribution and answer in turn."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import grpc

from headrace.clients import contribution_messages, messages
from headrace.clients.blobs import VECTOR, BlobAssembler, chunks_of
from headrace.errors import InvalidDataError
from headrace.rpc.handshake import Handshake, check
from headrace.sync.contribution import Contribution, GroupRequest
from headrace.v1 import parameters_pb2

if TYPE_CHECKING:
    from services.paramserver.rounds.gathering import Gathering
    from services.paramserver.rounds.members import Answer

_LARGEST_NUMBER_BYTES = 4

Requests = Iterator[parameters_pb2.PushGradientsRequest]
Responses = Iterator[parameters_pb2.PushGradientsResponse]


def take_part(
    gathering: Gathering, handshake: Handshake, requests: Requests, context: grpc.ServicerContext
) -> Responses:
    """Serve a stream to its end. The learner is a member for exactly as long. Raises HeadraceError."""
    first = next(requests, None)
    if first is None or first.WhichOneof("kind") != "hello":
        raise InvalidDataError("a learner's stream must begin with its hello")
    hello = first.hello
    check(handshake, Handshake.from_proto(hello.handshake))
    layout = contribution_messages.layout_from_proto(hello)
    have = messages.version_from_proto(hello.have)
    member, welcome = gathering.join(
        hello.learner_id, hello.incarnation, layout, have, rendezvous=hello.rendezvous
    )
    # A broken connection is noticed here first: whoever waits for this learner goes on without it at once.
    if not context.add_callback(partial(gathering.leave, member)):
        gathering.leave(member)
        return
    try:
        yield from _say(welcome)
        while (request := next(requests, None)) is not None:
            if request.WhichOneof("kind") == "broken":
                asked = GroupRequest(request.broken.generation, request.broken.reason)
                yield from _say(gathering.ask(member, asked, context.is_active))
                continue
            contribution = _receive(request, requests, layout.size)
            yield from _say(gathering.contribute(member, contribution, context.is_active))
    finally:
        gathering.leave(member)


def _receive(first: parameters_pb2.PushGradientsRequest, requests: Requests, size: int) -> Contribution:
    if first.WhichOneof("kind") != "contribution":
        raise InvalidDataError("a contribution must begin with its header")
    for blob in first.contribution.blobs:
        if blob.kind == VECTOR and blob.nbytes > _LARGEST_NUMBER_BYTES * size:
            raise InvalidDataError(f"a vector of {blob.nbytes} bytes, expected {size} numbers at most")
    assembler = BlobAssembler(first.contribution.blobs)
    while not assembler.complete:
        request = next(requests, None)
        if request is None or request.WhichOneof("kind") != "chunk":
            raise InvalidDataError("the contribution ended before its blobs were whole")
        assembler.feed(request.chunk)
    return contribution_messages.contribution_from_proto(first.contribution, assembler, size)


def _say(answer: Answer) -> Responses:
    blobs = dict(answer.blobs)
    result = contribution_messages.result_to_proto(answer.result, blobs)
    yield parameters_pb2.PushGradientsResponse(result=result)
    for kind, blob in blobs.items():
        for chunk in chunks_of(kind, blob):
            yield parameters_pb2.PushGradientsResponse(chunk=chunk)
