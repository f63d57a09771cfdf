from headrace.v1 import common_pb2 as _common_pb2
from headrace.v1 import trajectory_pb2 as _trajectory_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SampleRequest(_message.Message):
    __slots__ = ("open", "draw")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DRAW_FIELD_NUMBER: _ClassVar[int]
    open: OpenSampling
    draw: Draw
    def __init__(self, open: _Optional[_Union[OpenSampling, _Mapping]] = ..., draw: _Optional[_Union[Draw, _Mapping]] = ...) -> None: ...

class OpenSampling(_message.Message):
    __slots__ = ("handshake", "checksum", "shared_memory")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    checksum: bool
    shared_memory: bool
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., checksum: bool = ..., shared_memory: bool = ...) -> None: ...

class Draw(_message.Message):
    __slots__ = ("request_id", "num_items", "newest_version", "shared_memory", "sequence_length")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    num_items: int
    newest_version: int
    shared_memory: bool
    sequence_length: int
    def __init__(self, request_id: _Optional[int] = ..., num_items: _Optional[int] = ..., newest_version: _Optional[int] = ..., shared_memory: bool = ..., sequence_length: _Optional[int] = ...) -> None: ...

class SampleResponse(_message.Message):
    __slots__ = ("opened", "sample")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    opened: SamplingOpened
    sample: SamplePart
    def __init__(self, opened: _Optional[_Union[SamplingOpened, _Mapping]] = ..., sample: _Optional[_Union[SamplePart, _Mapping]] = ...) -> None: ...

class SamplingOpened(_message.Message):
    __slots__ = ("slab",)
    SLAB_FIELD_NUMBER: _ClassVar[int]
    slab: _trajectory_pb2.Slab
    def __init__(self, slab: _Optional[_Union[_trajectory_pb2.Slab, _Mapping]] = ...) -> None: ...

class SamplePart(_message.Message):
    __slots__ = ("header", "part", "parts", "codec", "padding", "payload")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: SampleHeader
    part: int
    parts: int
    codec: str
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[SampleHeader, _Mapping]] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., codec: _Optional[str] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class SampleHeader(_message.Message):
    __slots__ = ("request_id", "num_items", "reason", "count", "mass", "columns", "crc32", "payload_bytes")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MASS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    num_items: int
    reason: str
    count: int
    mass: float
    columns: _containers.RepeatedCompositeFieldContainer[_common_pb2.Column]
    crc32: int
    payload_bytes: int
    def __init__(self, request_id: _Optional[int] = ..., num_items: _Optional[int] = ..., reason: _Optional[str] = ..., count: _Optional[int] = ..., mass: _Optional[float] = ..., columns: _Optional[_Iterable[_Union[_common_pb2.Column, _Mapping]]] = ..., crc32: _Optional[int] = ..., payload_bytes: _Optional[int] = ...) -> None: ...

class UpdatePrioritiesRequest(_message.Message):
    __slots__ = ("handshake", "keys", "priorities")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    keys: bytes
    priorities: bytes
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., keys: _Optional[bytes] = ..., priorities: _Optional[bytes] = ...) -> None: ...

class UpdatePrioritiesResponse(_message.Message):
    __slots__ = ("applied", "ignored", "refused", "reason")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    applied: int
    ignored: int
    refused: int
    reason: str
    def __init__(self, applied: _Optional[int] = ..., ignored: _Optional[int] = ..., refused: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class GetShardStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetShardStatsResponse(_message.Message):
    __slots__ = ("count", "mass", "inserted", "evicted", "drawn", "fill_ratio", "nbytes", "stored", "newest_version")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MASS_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    FILL_RATIO_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    count: int
    mass: float
    inserted: int
    evicted: int
    drawn: int
    fill_ratio: float
    nbytes: int
    stored: int
    newest_version: int
    def __init__(self, count: _Optional[int] = ..., mass: _Optional[float] = ..., inserted: _Optional[int] = ..., evicted: _Optional[int] = ..., drawn: _Optional[int] = ..., fill_ratio: _Optional[float] = ..., nbytes: _Optional[int] = ..., stored: _Optional[int] = ..., newest_version: _Optional[int] = ...) -> None: ...
