from headrace.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ShardTier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SHARD_TIER_UNSPECIFIED: _ClassVar[ShardTier]
    SHARD_TIER_HOT: _ClassVar[ShardTier]
    SHARD_TIER_COLD: _ClassVar[ShardTier]
SHARD_TIER_UNSPECIFIED: ShardTier
SHARD_TIER_HOT: ShardTier
SHARD_TIER_COLD: ShardTier

class ShardJoin(_message.Message):
    __slots__ = ("handshake", "shard_id", "address", "tier", "sampler", "fragment_transitions")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    shard_id: str
    address: str
    tier: ShardTier
    sampler: _common_pb2.SamplerIdentity
    fragment_transitions: int
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., shard_id: _Optional[str] = ..., address: _Optional[str] = ..., tier: _Optional[_Union[ShardTier, str]] = ..., sampler: _Optional[_Union[_common_pb2.SamplerIdentity, _Mapping]] = ..., fragment_transitions: _Optional[int] = ...) -> None: ...

class ShardReport(_message.Message):
    __slots__ = ("mass", "count", "inserted", "evicted", "drawn", "newest_version", "fill_ratio", "episodes", "results", "insert_allowance")
    MASS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    FILL_RATIO_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    INSERT_ALLOWANCE_FIELD_NUMBER: _ClassVar[int]
    mass: float
    count: int
    inserted: int
    evicted: int
    drawn: int
    newest_version: int
    fill_ratio: float
    episodes: int
    results: _containers.RepeatedCompositeFieldContainer[EpisodeResult]
    insert_allowance: int
    def __init__(self, mass: _Optional[float] = ..., count: _Optional[int] = ..., inserted: _Optional[int] = ..., evicted: _Optional[int] = ..., drawn: _Optional[int] = ..., newest_version: _Optional[int] = ..., fill_ratio: _Optional[float] = ..., episodes: _Optional[int] = ..., results: _Optional[_Iterable[_Union[EpisodeResult, _Mapping]]] = ..., insert_allowance: _Optional[int] = ...) -> None: ...

class EpisodeResult(_message.Message):
    __slots__ = ("number", "episode_return", "length")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPISODE_RETURN_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    number: int
    episode_return: float
    length: int
    def __init__(self, number: _Optional[int] = ..., episode_return: _Optional[float] = ..., length: _Optional[int] = ...) -> None: ...

class ShardLeave(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class JoinShardRequest(_message.Message):
    __slots__ = ("join", "report", "leave")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    join: ShardJoin
    report: ShardReport
    leave: ShardLeave
    def __init__(self, join: _Optional[_Union[ShardJoin, _Mapping]] = ..., report: _Optional[_Union[ShardReport, _Mapping]] = ..., leave: _Optional[_Union[ShardLeave, _Mapping]] = ...) -> None: ...

class JoinShardResponse(_message.Message):
    __slots__ = ("insert_allowance", "throttled_by", "episodes")
    INSERT_ALLOWANCE_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_BY_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    insert_allowance: int
    throttled_by: str
    episodes: int
    def __init__(self, insert_allowance: _Optional[int] = ..., throttled_by: _Optional[str] = ..., episodes: _Optional[int] = ...) -> None: ...

class LearnerJoin(_message.Message):
    __slots__ = ("handshake", "learner_id", "incarnation")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    LEARNER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    learner_id: str
    incarnation: int
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., learner_id: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class LearnerReport(_message.Message):
    __slots__ = ("drawn", "newest_version")
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    drawn: int
    newest_version: int
    def __init__(self, drawn: _Optional[int] = ..., newest_version: _Optional[int] = ...) -> None: ...

class FollowDirectoryRequest(_message.Message):
    __slots__ = ("join", "report")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    join: LearnerJoin
    report: LearnerReport
    def __init__(self, join: _Optional[_Union[LearnerJoin, _Mapping]] = ..., report: _Optional[_Union[LearnerReport, _Mapping]] = ...) -> None: ...

class FollowDirectoryResponse(_message.Message):
    __slots__ = ("incarnation", "view")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    view: DirectoryView
    def __init__(self, incarnation: _Optional[int] = ..., view: _Optional[_Union[DirectoryView, _Mapping]] = ...) -> None: ...

class ShardView(_message.Message):
    __slots__ = ("shard_id", "address", "tier", "mass", "count")
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    MASS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    shard_id: str
    address: str
    tier: ShardTier
    mass: float
    count: int
    def __init__(self, shard_id: _Optional[str] = ..., address: _Optional[str] = ..., tier: _Optional[_Union[ShardTier, str]] = ..., mass: _Optional[float] = ..., count: _Optional[int] = ...) -> None: ...

class DirectoryView(_message.Message):
    __slots__ = ("shards", "sample_allowance", "outage_samples", "throttled_by", "samples", "env_steps", "episodes", "recent_returns", "recent_lengths", "drift")
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_ALLOWANCE_FIELD_NUMBER: _ClassVar[int]
    OUTAGE_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_BY_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    RECENT_RETURNS_FIELD_NUMBER: _ClassVar[int]
    RECENT_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    DRIFT_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[ShardView]
    sample_allowance: int
    outage_samples: int
    throttled_by: str
    samples: int
    env_steps: int
    episodes: int
    recent_returns: _containers.RepeatedScalarFieldContainer[float]
    recent_lengths: _containers.RepeatedScalarFieldContainer[int]
    drift: float
    def __init__(self, shards: _Optional[_Iterable[_Union[ShardView, _Mapping]]] = ..., sample_allowance: _Optional[int] = ..., outage_samples: _Optional[int] = ..., throttled_by: _Optional[str] = ..., samples: _Optional[int] = ..., env_steps: _Optional[int] = ..., episodes: _Optional[int] = ..., recent_returns: _Optional[_Iterable[float]] = ..., recent_lengths: _Optional[_Iterable[int]] = ..., drift: _Optional[float] = ...) -> None: ...

class GetDirectoryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetDirectoryResponse(_message.Message):
    __slots__ = ("view", "shards", "learners", "limited_s")
    class ShardsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ShardReport
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ShardReport, _Mapping]] = ...) -> None: ...
    class LearnersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LimitedSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VIEW_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    LIMITED_S_FIELD_NUMBER: _ClassVar[int]
    view: DirectoryView
    shards: _containers.MessageMap[str, ShardReport]
    learners: _containers.ScalarMap[str, int]
    limited_s: _containers.ScalarMap[str, float]
    def __init__(self, view: _Optional[_Union[DirectoryView, _Mapping]] = ..., shards: _Optional[_Mapping[str, ShardReport]] = ..., learners: _Optional[_Mapping[str, int]] = ..., limited_s: _Optional[_Mapping[str, float]] = ...) -> None: ...
