"""Parameter servers that answer watches with what a test has written down, lies included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from paramserving import make_parameters

from headrace.checkpoint import Blob
from headrace.clients import messages
from headrace.clients.blobs import ACTING, chunks_of, manifest_of
from headrace.rpc.server import RunningServer, serve
from headrace.types import PolicyVersion
from headrace.v1 import parameters_pb2, parameters_service_pb2_grpc

Script = Callable[[parameters_pb2.WatchVersionsRequest], Iterator[parameters_pb2.WatchVersionsResponse]]


class Scripted(parameters_service_pb2_grpc.ParameterServiceServicer):
    """Answers the n-th watch with the n-th script; the last one stays."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = scripts
        self.requests: list[parameters_pb2.WatchVersionsRequest] = []

    def WatchVersions(self, request: Any, context: Any) -> Iterator[parameters_pb2.WatchVersionsResponse]:
        self.requests.append(request)
        return self.scripts[min(len(self.requests), len(self.scripts)) - 1](request)


@contextmanager
def scripted(*scripts: Script) -> Iterator[tuple[Scripted, RunningServer]]:
    servicer = Scripted(*scripts)
    add = partial(parameters_service_pb2_grpc.add_ParameterServiceServicer_to_server, servicer)
    server = serve(address="127.0.0.1:0", register=(add,), max_streams=4)
    try:
        yield servicer, server
    finally:
        server.stop(0.0)


def version_messages(number: int, *, sha256: str | None = None, epoch: int = 1) -> list[Any]:
    blob = Blob.encode(make_parameters(number, size=2**20))
    manifest = parameters_pb2.VersionManifest(
        version=messages.version_to_proto(PolicyVersion(epoch, number)),
        blobs=[manifest_of(ACTING, blob if sha256 is None else Blob(blob.data, sha256))],
    )
    chunks = [parameters_pb2.WatchVersionsResponse(chunk=chunk) for chunk in chunks_of(ACTING, blob)]
    return [parameters_pb2.WatchVersionsResponse(manifest=manifest), *chunks]
