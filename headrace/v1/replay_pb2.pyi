from headrace.v1 import common_pb2 as _common_pb2
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
    open: _common_pb2.Handshake
    draw: Draw
    def __init__(self, open: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., draw: _Optional[_Union[Draw, _Mapping]] = ...) -> None: ...

class Draw(_message.Message):
    __slots__ = ("request_id", "num_items", "newest_version")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    num_items: int
    newest_version: int
    def __init__(self, request_id: _Optional[int] = ..., num_items: _Optional[int] = ..., newest_version: _Optional[int] = ...) -> None: ...

class SampleResponse(_message.Message):
    __slots__ = ("request_id", "part", "parts", "num_items", "count", "mass", "payload_bytes", "columns", "payload")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MASS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    part: int
    parts: int
    num_items: int
    count: int
    mass: float
    payload_bytes: int
    columns: _containers.RepeatedCompositeFieldContainer[_common_pb2.Column]
    payload: bytes
    def __init__(self, request_id: _Optional[int] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., num_items: _Optional[int] = ..., count: _Optional[int] = ..., mass: _Optional[float] = ..., payload_bytes: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[_common_pb2.Column, _Mapping]]] = ..., payload: _Optional[bytes] = ...) -> None: ...

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
    __slots__ = ("applied", "ignored", "refused")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    applied: int
    ignored: int
    refused: int
    def __init__(self, applied: _Optional[int] = ..., ignored: _Optional[int] = ..., refused: _Optional[int] = ...) -> None: ...

class GetShardStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetShardStatsResponse(_message.Message):
    __slots__ = ("count", "mass", "inserted", "evicted", "drawn", "fill_ratio", "nbytes")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MASS_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    FILL_RATIO_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    count: int
    mass: float
    inserted: int
    evicted: int
    drawn: int
    fill_ratio: float
    nbytes: int
    def __init__(self, count: _Optional[int] = ..., mass: _Optional[float] = ..., inserted: _Optional[int] = ..., evicted: _Optional[int] = ..., drawn: _Optional[int] = ..., fill_ratio: _Optional[float] = ..., nbytes: _Optional[int] = ...) -> None: ...
