from headrace.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FragmentHeader(_message.Message):
    __slots__ = ("sampler", "sequence", "policy_version", "config_digest", "num_transitions", "produced_through", "permit", "columns", "crc32", "payload_bytes", "steps_per_second")
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    PERMIT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    sampler: _common_pb2.SamplerIdentity
    sequence: int
    policy_version: _common_pb2.PolicyVersion
    config_digest: str
    num_transitions: int
    produced_through: int
    permit: int
    columns: _containers.RepeatedCompositeFieldContainer[_common_pb2.Column]
    crc32: int
    payload_bytes: int
    steps_per_second: float
    def __init__(self, sampler: _Optional[_Union[_common_pb2.SamplerIdentity, _Mapping]] = ..., sequence: _Optional[int] = ..., policy_version: _Optional[_Union[_common_pb2.PolicyVersion, _Mapping]] = ..., config_digest: _Optional[str] = ..., num_transitions: _Optional[int] = ..., produced_through: _Optional[int] = ..., permit: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[_common_pb2.Column, _Mapping]]] = ..., crc32: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., steps_per_second: _Optional[float] = ...) -> None: ...

class FragmentPart(_message.Message):
    __slots__ = ("header", "part", "parts", "codec", "padding", "payload")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: FragmentHeader
    part: int
    parts: int
    codec: str
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[FragmentHeader, _Mapping]] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., codec: _Optional[str] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class FragmentParts(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[FragmentPart]
    def __init__(self, parts: _Optional[_Iterable[_Union[FragmentPart, _Mapping]]] = ...) -> None: ...

class SamplerReport(_message.Message):
    __slots__ = ("produced", "discarded", "backlog_bytes")
    class DiscardedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    produced: int
    discarded: _containers.ScalarMap[str, int]
    backlog_bytes: int
    def __init__(self, produced: _Optional[int] = ..., discarded: _Optional[_Mapping[str, int]] = ..., backlog_bytes: _Optional[int] = ...) -> None: ...

class StreamFragmentsRequest(_message.Message):
    __slots__ = ("open", "fragment", "fragments", "report", "goodbye", "release")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    open: OpenStream
    fragment: FragmentPart
    fragments: FragmentParts
    report: SamplerReport
    goodbye: Goodbye
    release: Release
    def __init__(self, open: _Optional[_Union[OpenStream, _Mapping]] = ..., fragment: _Optional[_Union[FragmentPart, _Mapping]] = ..., fragments: _Optional[_Union[FragmentParts, _Mapping]] = ..., report: _Optional[_Union[SamplerReport, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ...) -> None: ...

class OpenStream(_message.Message):
    __slots__ = ("handshake", "sampler", "fragment_bytes", "fragment_transitions", "next_sequence", "slab")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SLAB_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    sampler: _common_pb2.SamplerIdentity
    fragment_bytes: int
    fragment_transitions: int
    next_sequence: int
    slab: Slab
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., sampler: _Optional[_Union[_common_pb2.SamplerIdentity, _Mapping]] = ..., fragment_bytes: _Optional[int] = ..., fragment_transitions: _Optional[int] = ..., next_sequence: _Optional[int] = ..., slab: _Optional[_Union[Slab, _Mapping]] = ...) -> None: ...

class Slab(_message.Message):
    __slots__ = ("pid", "descriptor", "pages", "page_bytes", "token")
    PID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    pid: int
    descriptor: int
    pages: int
    page_bytes: int
    token: bytes
    def __init__(self, pid: _Optional[int] = ..., descriptor: _Optional[int] = ..., pages: _Optional[int] = ..., page_bytes: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class SlabSpan(_message.Message):
    __slots__ = ("page", "nbytes")
    PAGE_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    page: int
    nbytes: int
    def __init__(self, page: _Optional[int] = ..., nbytes: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("through", "priorities")
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    through: int
    priorities: bytes
    def __init__(self, through: _Optional[int] = ..., priorities: _Optional[bytes] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason", "last_sequence")
    REASON_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    last_sequence: int
    def __init__(self, reason: _Optional[str] = ..., last_sequence: _Optional[int] = ...) -> None: ...

class StreamFragmentsResponse(_message.Message):
    __slots__ = ("welcome", "grant", "settled", "refused")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    grant: Grant
    settled: Settled
    refused: Refused
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ..., settled: _Optional[_Union[Settled, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("settled_through", "policy_version", "paced", "shared_memory")
    SETTLED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    PACED_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    settled_through: int
    policy_version: _common_pb2.PolicyVersion
    paced: bool
    shared_memory: bool
    def __init__(self, settled_through: _Optional[int] = ..., policy_version: _Optional[_Union[_common_pb2.PolicyVersion, _Mapping]] = ..., paced: bool = ..., shared_memory: bool = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("total_bytes", "permits", "throttled_by", "quota_steps")
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    PERMITS_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_BY_FIELD_NUMBER: _ClassVar[int]
    QUOTA_STEPS_FIELD_NUMBER: _ClassVar[int]
    total_bytes: int
    permits: _containers.RepeatedCompositeFieldContainer[Permit]
    throttled_by: str
    quota_steps: int
    def __init__(self, total_bytes: _Optional[int] = ..., permits: _Optional[_Iterable[_Union[Permit, _Mapping]]] = ..., throttled_by: _Optional[str] = ..., quota_steps: _Optional[int] = ...) -> None: ...

class Permit(_message.Message):
    __slots__ = ("index", "min_version")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    index: int
    min_version: int
    def __init__(self, index: _Optional[int] = ..., min_version: _Optional[int] = ...) -> None: ...

class Settled(_message.Message):
    __slots__ = ("through",)
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    through: int
    def __init__(self, through: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("sequence", "reason", "detail")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    reason: str
    detail: str
    def __init__(self, sequence: _Optional[int] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...
