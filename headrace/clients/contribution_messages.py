"""The values of :mod:`headrace.sync.contribution` as messages, and back."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.checkpoint.blob import Blob
from headrace.clients import messages
from headrace.clients.blobs import STATE, TRAINING, VECTOR, BlobAssembler, manifest_of
from headrace.errors import InvalidDataError
from headrace.sync.aggregation import FlatArray
from headrace.sync.contribution import MAX_RETURNS, Contribution, Group, RoundResult, VectorKind, Work
from headrace.sync.layout import Layout
from headrace.sync.vectors import VectorType, decode_vector, encode_vector
from headrace.v1 import common_pb2, parameters_pb2

Blobs = Mapping[parameters_pb2.BlobKind, Blob]

_KINDS: dict[int, VectorKind] = {
    parameters_pb2.CONTRIBUTION_KIND_GRADIENT: "gradient",
    parameters_pb2.CONTRIBUTION_KIND_VALUES: "values",
    parameters_pb2.CONTRIBUTION_KIND_CHANGE: "change",
    parameters_pb2.CONTRIBUTION_KIND_NONE: "none",
}
_TYPES: dict[int, VectorType] = {
    parameters_pb2.VECTOR_TYPE_FLOAT32: "float32",
    parameters_pb2.VECTOR_TYPE_FLOAT16: "float16",
    parameters_pb2.VECTOR_TYPE_BFLOAT16: "bfloat16",
}


def layout_to_proto(layout: Layout) -> list[common_pb2.Column]:
    """The tensors of a flat vector, one after the other."""
    columns, offset = [], 0
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        nbytes = 4 * Layout((name,), (shape,)).size
        columns.append(common_pb2.Column(name=name, dtype="f4", shape=shape, offset=offset, nbytes=nbytes))
        offset += nbytes
    return columns


def layout_from_proto(hello: parameters_pb2.LearnerHello) -> Layout:
    """Inverse of :func:`layout_to_proto`; InvalidDataError if the columns don't lie one after the other."""
    layout = Layout(
        tuple(column.name for column in hello.layout),
        tuple(tuple(column.shape) for column in hello.layout),
    )
    if not layout.names or list(hello.layout) != layout_to_proto(layout):
        raise InvalidDataError("a layout must be of float32 columns, one after the other")
    return layout


def contribution_to_proto(
    contribution: Contribution, vector_type: VectorType
) -> tuple[parameters_pb2.ContributionHeader, Blobs]:
    """Header and blobs of a contribution."""
    blobs = {STATE: Blob.encode(contribution.state)}
    if contribution.kind != "none":
        blobs[VECTOR] = Blob.of(encode_vector(contribution.vector, vector_type))
    if contribution.training is not None:
        blobs[TRAINING] = Blob.encode(contribution.training)
    header = parameters_pb2.ContributionHeader(
        sequence=contribution.sequence,
        base=messages.version_to_proto(contribution.base),
        vector_kind=f"CONTRIBUTION_KIND_{contribution.kind.upper()}",
        vector_type=f"VECTOR_TYPE_{vector_type.upper()}",
        num_samples=contribution.num_samples,
        learning_rate=contribution.learning_rate,
        blobs=[manifest_of(kind, blob) for kind, blob in blobs.items()],
        work=_work_to_proto(contribution.work),
        accounts=messages.accounts_to_proto(contribution.accounts),
        values_sha256=contribution.values_sha256,
    )
    return header, blobs


def contribution_from_proto(
    header: parameters_pb2.ContributionHeader, assembler: BlobAssembler, size: int
) -> Contribution:
    """Inverse of :func:`contribution_to_proto` for vectors of ``size`` numbers.

    InvalidDataError, CodecError or ChecksumError if it is not whole or not what it says.
    """
    kind, vector_type = _KINDS.get(header.vector_kind), _TYPES.get(header.vector_type)
    state, vector, training = (assembler.take(blob) for blob in (STATE, VECTOR, TRAINING))
    if kind is None or vector_type is None or state is None or (vector is None) != (kind == "none"):
        raise InvalidDataError("a contribution needs its kind, its number type, its state and its vector")
    return Contribution(
        sequence=header.sequence,
        base=messages.version_from_proto(header.base),
        kind=kind,
        vector=decode_vector(vector.data if vector else b"", vector_type, size if vector else 0),
        num_samples=header.num_samples,
        learning_rate=header.learning_rate,
        state=state.decode(),
        training=None if training is None else training.decode(),
        work=_work_from_proto(header.work),
        accounts=messages.accounts_from_proto(header.accounts),
        values_sha256=header.values_sha256,
    )


def result_to_proto(result: RoundResult, blobs: Blobs) -> parameters_pb2.RoundResult:
    """What became of a contribution. ``blobs``: vector and state of the newest version, or none."""
    group = result.group
    return parameters_pb2.RoundResult(
        outcome=result.outcome,
        detail=result.detail,
        version=messages.version_to_proto(result.version),
        lag=result.lag,
        run_state=messages.status_to_proto(result.status),
        report=messages.report_to_proto(result.report),
        want_training_blob=result.want_training,
        applied_through=result.applied_through,
        local_steps=result.local_steps or 0,
        blobs=[manifest_of(kind, blob) for kind, blob in blobs.items()],
        group=None
        if group is None
        else parameters_pb2.LearnerGroup(
            generation=group.generation, rank=group.rank, size=group.size, rendezvous=group.rendezvous
        ),
    )


def result_from_proto(
    message: parameters_pb2.RoundResult, assembler: BlobAssembler, size: int
) -> RoundResult:
    """Inverse of :func:`result_to_proto` for vectors of ``size`` numbers; raises as it does."""
    vector, state = assembler.take(VECTOR), assembler.take(STATE)
    values: FlatArray | None = None if vector is None else decode_vector(vector.data, "float32", size)
    group = message.group
    return RoundResult(
        outcome=message.outcome,
        version=messages.version_from_proto(message.version),
        status=messages.status_from_proto(message.run_state),
        report=messages.report_from_proto(message.report),
        detail=message.detail,
        lag=message.lag,
        want_training=message.want_training_blob,
        applied_through=message.applied_through,
        local_steps=message.local_steps or None,
        values=values,
        state=None if state is None else state.decode(),
        group=Group(group.generation, group.rank, group.size, group.rendezvous)
        if message.HasField("group")
        else None,
    )


def _work_to_proto(work: Work) -> parameters_pb2.Work:
    return parameters_pb2.Work(
        env_steps=work.env_steps,
        samples_trained=work.samples_trained,
        episodes=work.episodes,
        returns=work.returns,
        counts_whole_run=work.counts_whole_run,
        metrics=work.metrics,
        policy_lags=work.policy_lags,
        idle_share=work.idle_share,
    )


def _work_from_proto(message: parameters_pb2.Work) -> Work:
    return Work(
        env_steps=message.env_steps,
        samples_trained=message.samples_trained,
        episodes=message.episodes,
        returns=tuple(message.returns)[-MAX_RETURNS:],
        counts_whole_run=message.counts_whole_run,
        metrics=dict(message.metrics),
        policy_lags=tuple(message.policy_lags),
        idle_share=message.idle_share,
    )
