from headrace.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BlobKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLOB_KIND_UNSPECIFIED: _ClassVar[BlobKind]
    BLOB_KIND_ACTING: _ClassVar[BlobKind]
    BLOB_KIND_TRAINING: _ClassVar[BlobKind]
    BLOB_KIND_VECTOR: _ClassVar[BlobKind]
    BLOB_KIND_STATE: _ClassVar[BlobKind]

class ContributionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTRIBUTION_KIND_UNSPECIFIED: _ClassVar[ContributionKind]
    CONTRIBUTION_KIND_GRADIENT: _ClassVar[ContributionKind]
    CONTRIBUTION_KIND_VALUES: _ClassVar[ContributionKind]
    CONTRIBUTION_KIND_CHANGE: _ClassVar[ContributionKind]
    CONTRIBUTION_KIND_NONE: _ClassVar[ContributionKind]

class VectorType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VECTOR_TYPE_UNSPECIFIED: _ClassVar[VectorType]
    VECTOR_TYPE_FLOAT32: _ClassVar[VectorType]
    VECTOR_TYPE_FLOAT16: _ClassVar[VectorType]
    VECTOR_TYPE_BFLOAT16: _ClassVar[VectorType]

class RunPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_PHASE_UNSPECIFIED: _ClassVar[RunPhase]
    RUN_PHASE_STARTING: _ClassVar[RunPhase]
    RUN_PHASE_RUNNING: _ClassVar[RunPhase]
    RUN_PHASE_FINISHED: _ClassVar[RunPhase]
    RUN_PHASE_FAILED: _ClassVar[RunPhase]
    RUN_PHASE_INTERRUPTED: _ClassVar[RunPhase]
BLOB_KIND_UNSPECIFIED: BlobKind
BLOB_KIND_ACTING: BlobKind
BLOB_KIND_TRAINING: BlobKind
BLOB_KIND_VECTOR: BlobKind
BLOB_KIND_STATE: BlobKind
CONTRIBUTION_KIND_UNSPECIFIED: ContributionKind
CONTRIBUTION_KIND_GRADIENT: ContributionKind
CONTRIBUTION_KIND_VALUES: ContributionKind
CONTRIBUTION_KIND_CHANGE: ContributionKind
CONTRIBUTION_KIND_NONE: ContributionKind
VECTOR_TYPE_UNSPECIFIED: VectorType
VECTOR_TYPE_FLOAT32: VectorType
VECTOR_TYPE_FLOAT16: VectorType
VECTOR_TYPE_BFLOAT16: VectorType
RUN_PHASE_UNSPECIFIED: RunPhase
RUN_PHASE_STARTING: RunPhase
RUN_PHASE_RUNNING: RunPhase
RUN_PHASE_FINISHED: RunPhase
RUN_PHASE_FAILED: RunPhase
RUN_PHASE_INTERRUPTED: RunPhase

class BlobManifest(_message.Message):
    __slots__ = ("kind", "nbytes", "sha256")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    kind: BlobKind
    nbytes: int
    sha256: str
    def __init__(self, kind: _Optional[_Union[BlobKind, str]] = ..., nbytes: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class BlobChunk(_message.Message):
    __slots__ = ("kind", "offset", "data")
    KIND_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    kind: BlobKind
    offset: int
    data: bytes
    def __init__(self, kind: _Optional[_Union[BlobKind, str]] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class VersionManifest(_message.Message):
    __slots__ = ("version", "config_digest", "blobs", "report", "accounts")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTS_FIELD_NUMBER: _ClassVar[int]
    version: _common_pb2.PolicyVersion
    config_digest: str
    blobs: _containers.RepeatedCompositeFieldContainer[BlobManifest]
    report: TrainingReport
    accounts: _containers.RepeatedCompositeFieldContainer[LearnerAccount]
    def __init__(self, version: _Optional[_Union[_common_pb2.PolicyVersion, _Mapping]] = ..., config_digest: _Optional[str] = ..., blobs: _Optional[_Iterable[_Union[BlobManifest, _Mapping]]] = ..., report: _Optional[_Union[TrainingReport, _Mapping]] = ..., accounts: _Optional[_Iterable[_Union[LearnerAccount, _Mapping]]] = ...) -> None: ...

class TrainingReport(_message.Message):
    __slots__ = ("env_steps", "updates", "samples_trained", "episodes", "episode_return_mean", "episode_return_std", "metrics", "policy_lags")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_TRAINED_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    EPISODE_RETURN_MEAN_FIELD_NUMBER: _ClassVar[int]
    EPISODE_RETURN_STD_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    POLICY_LAGS_FIELD_NUMBER: _ClassVar[int]
    env_steps: int
    updates: int
    samples_trained: int
    episodes: int
    episode_return_mean: float
    episode_return_std: float
    metrics: _containers.ScalarMap[str, float]
    policy_lags: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, env_steps: _Optional[int] = ..., updates: _Optional[int] = ..., samples_trained: _Optional[int] = ..., episodes: _Optional[int] = ..., episode_return_mean: _Optional[float] = ..., episode_return_std: _Optional[float] = ..., metrics: _Optional[_Mapping[str, float]] = ..., policy_lags: _Optional[_Iterable[int]] = ...) -> None: ...

class LearnerAccount(_message.Message):
    __slots__ = ("sampler", "settled_through", "trained", "dropped")
    class DroppedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    SETTLED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    sampler: _common_pb2.SamplerIdentity
    settled_through: int
    trained: int
    dropped: _containers.ScalarMap[str, int]
    def __init__(self, sampler: _Optional[_Union[_common_pb2.SamplerIdentity, _Mapping]] = ..., settled_through: _Optional[int] = ..., trained: _Optional[int] = ..., dropped: _Optional[_Mapping[str, int]] = ...) -> None: ...

class WatchVersionsRequest(_message.Message):
    __slots__ = ("handshake", "have")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    have: _common_pb2.PolicyVersion
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., have: _Optional[_Union[_common_pb2.PolicyVersion, _Mapping]] = ...) -> None: ...

class WatchVersionsResponse(_message.Message):
    __slots__ = ("manifest", "chunk", "run_state")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    RUN_STATE_FIELD_NUMBER: _ClassVar[int]
    manifest: VersionManifest
    chunk: BlobChunk
    run_state: RunState
    def __init__(self, manifest: _Optional[_Union[VersionManifest, _Mapping]] = ..., chunk: _Optional[_Union[BlobChunk, _Mapping]] = ..., run_state: _Optional[_Union[RunState, _Mapping]] = ...) -> None: ...

class PublishVersionRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: PublishHeader
    chunk: BlobChunk
    def __init__(self, header: _Optional[_Union[PublishHeader, _Mapping]] = ..., chunk: _Optional[_Union[BlobChunk, _Mapping]] = ...) -> None: ...

class PublishHeader(_message.Message):
    __slots__ = ("handshake", "base", "blobs", "report", "accounts")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTS_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    base: _common_pb2.PolicyVersion
    blobs: _containers.RepeatedCompositeFieldContainer[BlobManifest]
    report: TrainingReport
    accounts: _containers.RepeatedCompositeFieldContainer[LearnerAccount]
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., base: _Optional[_Union[_common_pb2.PolicyVersion, _Mapping]] = ..., blobs: _Optional[_Iterable[_Union[BlobManifest, _Mapping]]] = ..., report: _Optional[_Union[TrainingReport, _Mapping]] = ..., accounts: _Optional[_Iterable[_Union[LearnerAccount, _Mapping]]] = ...) -> None: ...

class PublishVersionResponse(_message.Message):
    __slots__ = ("version", "want_training_blob", "run_state")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WANT_TRAINING_BLOB_FIELD_NUMBER: _ClassVar[int]
    RUN_STATE_FIELD_NUMBER: _ClassVar[int]
    version: _common_pb2.PolicyVersion
    want_training_blob: bool
    run_state: RunState
    def __init__(self, version: _Optional[_Union[_common_pb2.PolicyVersion, _Mapping]] = ..., want_training_blob: bool = ..., run_state: _Optional[_Union[RunState, _Mapping]] = ...) -> None: ...

class FetchVersionRequest(_message.Message):
    __slots__ = ("handshake", "with_training_blob")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    WITH_TRAINING_BLOB_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    with_training_blob: bool
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., with_training_blob: bool = ...) -> None: ...

class FetchVersionResponse(_message.Message):
    __slots__ = ("manifest", "chunk")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    manifest: VersionManifest
    chunk: BlobChunk
    def __init__(self, manifest: _Optional[_Union[VersionManifest, _Mapping]] = ..., chunk: _Optional[_Union[BlobChunk, _Mapping]] = ...) -> None: ...

class PushGradientsRequest(_message.Message):
    __slots__ = ("hello", "contribution", "chunk", "broken")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    hello: LearnerHello
    contribution: ContributionHeader
    chunk: BlobChunk
    broken: GroupBroken
    def __init__(self, hello: _Optional[_Union[LearnerHello, _Mapping]] = ..., contribution: _Optional[_Union[ContributionHeader, _Mapping]] = ..., chunk: _Optional[_Union[BlobChunk, _Mapping]] = ..., broken: _Optional[_Union[GroupBroken, _Mapping]] = ...) -> None: ...

class LearnerHello(_message.Message):
    __slots__ = ("handshake", "learner_id", "incarnation", "layout", "have", "rendezvous")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    LEARNER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    learner_id: str
    incarnation: int
    layout: _containers.RepeatedCompositeFieldContainer[_common_pb2.Column]
    have: _common_pb2.PolicyVersion
    rendezvous: str
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., learner_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., layout: _Optional[_Iterable[_Union[_common_pb2.Column, _Mapping]]] = ..., have: _Optional[_Union[_common_pb2.PolicyVersion, _Mapping]] = ..., rendezvous: _Optional[str] = ...) -> None: ...

class ContributionHeader(_message.Message):
    __slots__ = ("sequence", "base", "vector_kind", "vector_type", "num_samples", "learning_rate", "blobs", "work", "accounts", "values_sha256")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    VECTOR_KIND_FIELD_NUMBER: _ClassVar[int]
    VECTOR_TYPE_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTS_FIELD_NUMBER: _ClassVar[int]
    VALUES_SHA256_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    base: _common_pb2.PolicyVersion
    vector_kind: ContributionKind
    vector_type: VectorType
    num_samples: int
    learning_rate: float
    blobs: _containers.RepeatedCompositeFieldContainer[BlobManifest]
    work: Work
    accounts: _containers.RepeatedCompositeFieldContainer[LearnerAccount]
    values_sha256: str
    def __init__(self, sequence: _Optional[int] = ..., base: _Optional[_Union[_common_pb2.PolicyVersion, _Mapping]] = ..., vector_kind: _Optional[_Union[ContributionKind, str]] = ..., vector_type: _Optional[_Union[VectorType, str]] = ..., num_samples: _Optional[int] = ..., learning_rate: _Optional[float] = ..., blobs: _Optional[_Iterable[_Union[BlobManifest, _Mapping]]] = ..., work: _Optional[_Union[Work, _Mapping]] = ..., accounts: _Optional[_Iterable[_Union[LearnerAccount, _Mapping]]] = ..., values_sha256: _Optional[str] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("env_steps", "samples_trained", "episodes", "returns", "counts_whole_run", "metrics", "policy_lags", "idle_share")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_TRAINED_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_WHOLE_RUN_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    POLICY_LAGS_FIELD_NUMBER: _ClassVar[int]
    IDLE_SHARE_FIELD_NUMBER: _ClassVar[int]
    env_steps: int
    samples_trained: int
    episodes: int
    returns: _containers.RepeatedScalarFieldContainer[float]
    counts_whole_run: bool
    metrics: _containers.ScalarMap[str, float]
    policy_lags: _containers.RepeatedScalarFieldContainer[int]
    idle_share: float
    def __init__(self, env_steps: _Optional[int] = ..., samples_trained: _Optional[int] = ..., episodes: _Optional[int] = ..., returns: _Optional[_Iterable[float]] = ..., counts_whole_run: bool = ..., metrics: _Optional[_Mapping[str, float]] = ..., policy_lags: _Optional[_Iterable[int]] = ..., idle_share: _Optional[float] = ...) -> None: ...

class GroupBroken(_message.Message):
    __slots__ = ("generation", "reason")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    generation: int
    reason: str
    def __init__(self, generation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class PushGradientsResponse(_message.Message):
    __slots__ = ("result", "chunk")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    result: RoundResult
    chunk: BlobChunk
    def __init__(self, result: _Optional[_Union[RoundResult, _Mapping]] = ..., chunk: _Optional[_Union[BlobChunk, _Mapping]] = ...) -> None: ...

class RoundResult(_message.Message):
    __slots__ = ("outcome", "detail", "version", "lag", "run_state", "report", "want_training_blob", "applied_through", "blobs", "group", "local_steps")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    RUN_STATE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    WANT_TRAINING_BLOB_FIELD_NUMBER: _ClassVar[int]
    APPLIED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    detail: str
    version: _common_pb2.PolicyVersion
    lag: int
    run_state: RunState
    report: TrainingReport
    want_training_blob: bool
    applied_through: int
    blobs: _containers.RepeatedCompositeFieldContainer[BlobManifest]
    group: LearnerGroup
    local_steps: int
    def __init__(self, outcome: _Optional[str] = ..., detail: _Optional[str] = ..., version: _Optional[_Union[_common_pb2.PolicyVersion, _Mapping]] = ..., lag: _Optional[int] = ..., run_state: _Optional[_Union[RunState, _Mapping]] = ..., report: _Optional[_Union[TrainingReport, _Mapping]] = ..., want_training_blob: bool = ..., applied_through: _Optional[int] = ..., blobs: _Optional[_Iterable[_Union[BlobManifest, _Mapping]]] = ..., group: _Optional[_Union[LearnerGroup, _Mapping]] = ..., local_steps: _Optional[int] = ...) -> None: ...

class LearnerGroup(_message.Message):
    __slots__ = ("generation", "rank", "size", "rendezvous")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    size: int
    rendezvous: str
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., size: _Optional[int] = ..., rendezvous: _Optional[str] = ...) -> None: ...

class RunState(_message.Message):
    __slots__ = ("phase", "reason", "version")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    phase: RunPhase
    reason: str
    version: _common_pb2.PolicyVersion
    def __init__(self, phase: _Optional[_Union[RunPhase, str]] = ..., reason: _Optional[str] = ..., version: _Optional[_Union[_common_pb2.PolicyVersion, _Mapping]] = ...) -> None: ...

class GetRunStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRunStateResponse(_message.Message):
    __slots__ = ("run_state", "report", "accounts", "best", "checkpoint_problem")
    RUN_STATE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTS_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    run_state: RunState
    report: TrainingReport
    accounts: _containers.RepeatedCompositeFieldContainer[LearnerAccount]
    best: Evaluation
    checkpoint_problem: str
    def __init__(self, run_state: _Optional[_Union[RunState, _Mapping]] = ..., report: _Optional[_Union[TrainingReport, _Mapping]] = ..., accounts: _Optional[_Iterable[_Union[LearnerAccount, _Mapping]]] = ..., best: _Optional[_Union[Evaluation, _Mapping]] = ..., checkpoint_problem: _Optional[str] = ...) -> None: ...

class StopRunRequest(_message.Message):
    __slots__ = ("handshake", "phase", "reason")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    phase: RunPhase
    reason: str
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., phase: _Optional[_Union[RunPhase, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class StopRunResponse(_message.Message):
    __slots__ = ("run_state",)
    RUN_STATE_FIELD_NUMBER: _ClassVar[int]
    run_state: RunState
    def __init__(self, run_state: _Optional[_Union[RunState, _Mapping]] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("version", "return_mean", "return_std", "episodes", "env_steps")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RETURN_MEAN_FIELD_NUMBER: _ClassVar[int]
    RETURN_STD_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    version: _common_pb2.PolicyVersion
    return_mean: float
    return_std: float
    episodes: int
    env_steps: int
    def __init__(self, version: _Optional[_Union[_common_pb2.PolicyVersion, _Mapping]] = ..., return_mean: _Optional[float] = ..., return_std: _Optional[float] = ..., episodes: _Optional[int] = ..., env_steps: _Optional[int] = ...) -> None: ...

class BeginEvaluationRequest(_message.Message):
    __slots__ = ("handshake", "version")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    version: _common_pb2.PolicyVersion
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., version: _Optional[_Union[_common_pb2.PolicyVersion, _Mapping]] = ...) -> None: ...

class BeginEvaluationResponse(_message.Message):
    __slots__ = ("kept",)
    KEPT_FIELD_NUMBER: _ClassVar[int]
    kept: bool
    def __init__(self, kept: bool = ...) -> None: ...

class ReportEvaluationRequest(_message.Message):
    __slots__ = ("handshake", "evaluation")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    evaluation: Evaluation
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., evaluation: _Optional[_Union[Evaluation, _Mapping]] = ...) -> None: ...

class ReportEvaluationResponse(_message.Message):
    __slots__ = ("is_best", "run_state")
    IS_BEST_FIELD_NUMBER: _ClassVar[int]
    RUN_STATE_FIELD_NUMBER: _ClassVar[int]
    is_best: bool
    run_state: RunState
    def __init__(self, is_best: bool = ..., run_state: _Optional[_Union[RunState, _Mapping]] = ...) -> None: ...

class JoinRunRequest(_message.Message):
    __slots__ = ("handshake", "name", "instance")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    name: str
    instance: str
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., name: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class JoinRunResponse(_message.Message):
    __slots__ = ("sampler", "index", "learner")
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    sampler: _common_pb2.SamplerIdentity
    index: int
    learner: int
    def __init__(self, sampler: _Optional[_Union[_common_pb2.SamplerIdentity, _Mapping]] = ..., index: _Optional[int] = ..., learner: _Optional[int] = ...) -> None: ...

class SamplerAccount(_message.Message):
    __slots__ = ("sampler", "produced", "sealed", "discarded", "last_sequence", "settled_through", "settled", "evicted_unsunk", "drained")
    class DiscardedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SETTLED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_UNSUNK_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    sampler: _common_pb2.SamplerIdentity
    produced: int
    sealed: int
    discarded: _containers.ScalarMap[str, int]
    last_sequence: int
    settled_through: int
    settled: int
    evicted_unsunk: int
    drained: bool
    def __init__(self, sampler: _Optional[_Union[_common_pb2.SamplerIdentity, _Mapping]] = ..., produced: _Optional[int] = ..., sealed: _Optional[int] = ..., discarded: _Optional[_Mapping[str, int]] = ..., last_sequence: _Optional[int] = ..., settled_through: _Optional[int] = ..., settled: _Optional[int] = ..., evicted_unsunk: _Optional[int] = ..., drained: bool = ...) -> None: ...

class ColdAccount(_message.Message):
    __slots__ = ("sampler", "received", "standby", "active", "evicted", "redis_lost", "damaged")
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    REDIS_LOST_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    sampler: _common_pb2.SamplerIdentity
    received: int
    standby: int
    active: int
    evicted: int
    redis_lost: int
    damaged: int
    def __init__(self, sampler: _Optional[_Union[_common_pb2.SamplerIdentity, _Mapping]] = ..., received: _Optional[int] = ..., standby: _Optional[int] = ..., active: _Optional[int] = ..., evicted: _Optional[int] = ..., redis_lost: _Optional[int] = ..., damaged: _Optional[int] = ...) -> None: ...

class ReportAccountsRequest(_message.Message):
    __slots__ = ("handshake", "name", "instance", "samplers", "cold", "partition", "sampler", "learner")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SAMPLERS_FIELD_NUMBER: _ClassVar[int]
    COLD_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    name: str
    instance: str
    samplers: _containers.RepeatedCompositeFieldContainer[SamplerAccount]
    cold: _containers.RepeatedCompositeFieldContainer[ColdAccount]
    partition: int
    sampler: _common_pb2.SamplerIdentity
    learner: int
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., name: _Optional[str] = ..., instance: _Optional[str] = ..., samplers: _Optional[_Iterable[_Union[SamplerAccount, _Mapping]]] = ..., cold: _Optional[_Iterable[_Union[ColdAccount, _Mapping]]] = ..., partition: _Optional[int] = ..., sampler: _Optional[_Union[_common_pb2.SamplerIdentity, _Mapping]] = ..., learner: _Optional[int] = ...) -> None: ...

class ReportAccountsResponse(_message.Message):
    __slots__ = ("learner",)
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    learner: int
    def __init__(self, learner: _Optional[int] = ...) -> None: ...

class GetLedgerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Member(_message.Message):
    __slots__ = ("id", "name", "incarnation", "learner", "silent_seconds", "produced")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    SILENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    incarnation: int
    learner: int
    silent_seconds: float
    produced: int
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., incarnation: _Optional[int] = ..., learner: _Optional[int] = ..., silent_seconds: _Optional[float] = ..., produced: _Optional[int] = ...) -> None: ...

class GetLedgerResponse(_message.Message):
    __slots__ = ("produced", "trained", "stored", "evicted", "dropped", "in_flight", "lost", "balanced", "problems", "sampled", "incarnations", "members")
    class DroppedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LostEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    BALANCED_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    produced: int
    trained: int
    stored: int
    evicted: int
    dropped: _containers.ScalarMap[str, int]
    in_flight: int
    lost: _containers.ScalarMap[str, int]
    balanced: bool
    problems: _containers.RepeatedScalarFieldContainer[str]
    sampled: int
    incarnations: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, produced: _Optional[int] = ..., trained: _Optional[int] = ..., stored: _Optional[int] = ..., evicted: _Optional[int] = ..., dropped: _Optional[_Mapping[str, int]] = ..., in_flight: _Optional[int] = ..., lost: _Optional[_Mapping[str, int]] = ..., balanced: bool = ..., problems: _Optional[_Iterable[str]] = ..., sampled: _Optional[int] = ..., incarnations: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...
