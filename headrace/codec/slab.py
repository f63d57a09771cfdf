"""Memory shared by a sender and a receiver on one node: payloads go through it, descriptors over the stream.

The memory is a sealed memfd of the sender, opened by the receiver through /proc. It has no name in any
file system, so there is nothing to clean up after a kill, and it can't shrink, so the receiver can't be
made to fault. A fragment takes neighbouring pages; the receiver's arrays are views of them, and when
the last view is gone it clears their flags. Where no pages are free the sender uses the stream instead.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import secrets
import sys
import weakref
from collections.abc import Sequence
from typing import cast

import numpy as np
from google.protobuf.message import DecodeError

from headrace.codec.columns import Buffer, Payload
from headrace.errors import CodecError
from headrace.v1 import trajectory_pb2

PAGE_BYTES = 2**16
_TOKEN_BYTES = 16
_MAX_BYTES = 2**36
_SEALS = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW (linux/fcntl.h)
_ADD_SEALS, _GET_SEALS = 1033, 1034


def is_supported() -> bool:
    """Whether this system can share memory with another process this way."""
    return sys.platform == "linux" and hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


def _begin_of_pages(pages: int) -> int:
    """Where page 0 begins: after the token and the flags, at a multiple of 4 KiB."""
    return -(-(_TOKEN_BYTES + pages) // 4096) * 4096


class SlabWriter:
    """The sender's side. One thread writes. Every stream has a slab of its own, so that what an earlier
    receiver still looks at is never written to.
    """

    def __init__(self, nbytes: int) -> None:
        """Make room for ``nbytes`` of payload. OSError if the system has no memory to give."""
        self._pages = max(1, -(-nbytes // PAGE_BYTES))
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._begin = _begin_of_pages(self._pages)
        size = self._begin + self._pages * PAGE_BYTES
        self._descriptor = os.memfd_create("headrace-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._descriptor, size)
        fcntl.fcntl(self._descriptor, _ADD_SEALS, _SEALS)
        self._map = mmap.mmap(self._descriptor, size)
        self._map[:_TOKEN_BYTES] = self._token
        self._bytes = np.frombuffer(self._map, np.uint8)

    def describe(self) -> trajectory_pb2.Slab:
        """What a receiver has to be told."""
        return trajectory_pb2.Slab(
            pid=os.getpid(),
            descriptor=self._descriptor,
            pages=self._pages,
            page_bytes=PAGE_BYTES,
            token=self._token,
        )

    def write(self, buffers: Sequence[Buffer], nbytes: int) -> bytes | None:
        """Copy a payload in; the SlabSpan to send for it, or None if there is no room.

        Takes the lowest free pages: memory that was used a moment ago is still in the caches.
        """
        count = max(1, -(-nbytes // PAGE_BYTES))
        flags = self._map[_TOKEN_BYTES : _TOKEN_BYTES + self._pages]
        page = flags.find(bytes(count))
        if page < 0:
            return None
        self._map[_TOKEN_BYTES + page : _TOKEN_BYTES + page + count] = b"\1" * count
        position = self._begin + page * PAGE_BYTES
        for buffer in buffers:
            flat = buffer.reshape(-1).view(np.uint8) if isinstance(buffer, np.ndarray) else None
            content = np.frombuffer(buffer, np.uint8) if flat is None else flat
            self._bytes[position : position + content.size] = content
            position += content.size
        return trajectory_pb2.SlabSpan(page=page, nbytes=nbytes).SerializeToString()

    def close(self) -> None:
        """Give the descriptor back; the memory goes when the receiver's views have gone."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def make_slab(nbytes: int) -> SlabWriter | None:
    """Memory to offer; None if the system has none to give, or ``nbytes`` is 0."""
    if not nbytes or not is_supported():
        return None
    try:
        return SlabWriter(nbytes)
    except OSError:
        return None


class SlabReader:
    """The receiver's side."""

    def __init__(self, slab: trajectory_pb2.Slab) -> None:
        """Map a sender's memory; CodecError, in words, if it isn't there or isn't what it should be."""
        if not is_supported():
            raise CodecError("this system can't map another process's memory")
        self._pages = slab.pages
        self._begin = _begin_of_pages(slab.pages)
        size = self._begin + slab.pages * PAGE_BYTES
        if slab.page_bytes != PAGE_BYTES or not 0 < size <= _MAX_BYTES:
            raise CodecError(f"a slab of {slab.pages} pages of {slab.page_bytes} bytes")
        try:
            path = f"/proc/{slab.pid}/fd/{slab.descriptor}"
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            raise CodecError(f"the sender's memory can't be opened ({error.strerror})") from error
        try:
            self._map = _map_sealed(descriptor, size)
        except OSError as error:
            raise CodecError(f"the sender's memory can't be mapped ({error})") from error
        finally:
            os.close(descriptor)
        if self._map[:_TOKEN_BYTES] != slab.token:
            raise CodecError("the memory found under the sender's name is not the sender's")

    def read(self, span: bytes, max_bytes: int) -> Payload:
        """A view of a payload. Its pages are the sender's again once nothing refers to it."""
        try:
            message = trajectory_pb2.SlabSpan.FromString(span)
        except DecodeError as error:
            raise CodecError("not a SlabSpan") from error
        count = max(1, -(-message.nbytes // PAGE_BYTES))
        if message.nbytes > max_bytes or message.page + count > self._pages:
            raise CodecError(
                f"{message.nbytes} bytes at page {message.page} of {self._pages} in shared memory"
            )
        begin = self._begin + message.page * PAGE_BYTES
        # Not a memoryview: numpy looks through those, and an array would keep the map alive but not this.
        # An array of ctypes serves as a memoryview in all that is done with a payload.
        view = (ctypes.c_char * message.nbytes).from_buffer(self._map, begin)
        weakref.finalize(view, _clear, self._map, message.page, count).atexit = False
        return cast("Payload", view)


def _map_sealed(descriptor: int, size: int) -> mmap.mmap:
    # Only memfds have seals, so this refuses every other kind of file, too.
    if fcntl.fcntl(descriptor, _GET_SEALS) & _SEALS != _SEALS:
        raise OSError("it is not sealed")
    if os.fstat(descriptor).st_size != size:
        raise OSError("it has another size")
    return mmap.mmap(descriptor, size)


def _clear(memory: mmap.mmap, page: int, count: int) -> None:
    memory[_TOKEN_BYTES + page : _TOKEN_BYTES + page + count] = bytes(count)
