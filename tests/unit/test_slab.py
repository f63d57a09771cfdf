"""Shared memory: handed over without a copy, given back when unused, refused when it is another's."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import numpy as np
import pytest
from pipe import make_fragment

from headrace.codec import FragmentAssembler, encode_parts, join_request
from headrace.codec.slab import PAGE_BYTES, SlabReader, SlabWriter, is_supported
from headrace.errors import CodecError
from headrace.types import OBSERVATION, Fragment
from headrace.v1 import trajectory_pb2

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs Linux")


def send(writer: SlabWriter, assembler: FragmentAssembler, sequence: int, width: int = 3) -> Fragment:
    """Encode through the slab (or inline, if it is full) and decode."""
    fragment = make_fragment(sequence, width=width)
    parts = encode_parts(fragment, "shared_memory", 2**20, write_slab=writer.write)
    (received,) = [one for part in parts for one in assembler.feed(join_request([part]))]
    assert isinstance(received, Fragment)
    np.testing.assert_array_equal(received.columns[OBSERVATION], fragment.columns[OBSERVATION])
    return received


def codec_of(fragment: Fragment, writer: SlabWriter) -> str:
    (part,) = encode_parts(fragment, "shared_memory", 2**20, write_slab=writer.write)
    return trajectory_pb2.StreamFragmentsRequest.FromString(join_request([part])).fragment.codec


def test_pages_are_free_again_once_no_array_refers_to_them() -> None:
    writer = SlabWriter(2 * PAGE_BYTES)
    assembler = FragmentAssembler(2**20, read_slab=SlabReader(writer.describe()).read)
    first, second = send(writer, assembler, 0), send(writer, assembler, 1)
    assert codec_of(make_fragment(2), writer) == "protobuf"  # full
    kept = first.columns[OBSERVATION][2:]
    del first
    gc.collect()
    assert codec_of(make_fragment(2), writer) == "protobuf"  # a view of a view still holds it
    del kept
    gc.collect()
    assert codec_of(make_fragment(2), writer) == "shared_memory"
    assert (second.columns[OBSERVATION] == 1).all()
    writer.close()


def test_a_full_slab_falls_back_to_the_stream() -> None:
    writer = SlabWriter(PAGE_BYTES)
    assembler = FragmentAssembler(2**20, read_slab=SlabReader(writer.describe()).read)
    held = [send(writer, assembler, sequence) for sequence in range(5)]
    assert [(fragment.columns[OBSERVATION] == n).all() for n, fragment in enumerate(held)] == [True] * 5
    writer.close()


def test_a_fragment_takes_neighbouring_pages() -> None:
    writer = SlabWriter(4 * PAGE_BYTES)
    assembler = FragmentAssembler(2**20, read_slab=SlabReader(writer.describe()).read)
    width = 3 * PAGE_BYTES // (8 * 4 * 4)
    fragment = send(writer, assembler, 0, width=width)
    assert fragment.nbytes > 3 * PAGE_BYTES
    assert codec_of(make_fragment(1), writer) == "protobuf"
    writer.close()


def test_another_process_maps_it_and_it_outlives_the_sender() -> None:
    program = (
        "import sys\n"
        "from headrace.codec.slab import SlabWriter\n"
        "writer = SlabWriter(2**20)\n"
        "span = writer.write([bytes(range(256)) * 8], 2048)\n"
        "print(writer.describe().SerializeToString().hex(), span.hex(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    slab, span = (bytes.fromhex(word) for word in process.stdout.readline().split())
    reader = SlabReader(trajectory_pb2.Slab.FromString(slab))
    process.kill()
    process.wait(60)
    process.stdout.close()
    assert bytes(reader.read(span, 2**20)) == bytes(range(256)) * 8
    with pytest.raises(CodecError, match="can't be opened"):
        SlabReader(trajectory_pb2.Slab.FromString(slab))


def lie(writer: SlabWriter, **changes: int | bytes) -> trajectory_pb2.Slab:
    slab = writer.describe()
    for name, value in changes.items():
        setattr(slab, name, value)
    return slab


def test_a_slab_that_is_not_what_it_claims_is_refused() -> None:
    writer = SlabWriter(PAGE_BYTES)
    plain = os.memfd_create("unsealed")
    read_end, write_end = os.pipe()
    for slab, words in (
        (lie(writer, token=b"x" * 16), "not the sender's"),
        (lie(writer, pages=2), "another size"),
        (lie(writer, pages=2**31), "a slab of"),
        (lie(writer, pages=0), "can't be mapped|a slab of"),
        (lie(writer, page_bytes=1), "a slab of"),
        (lie(writer, pid=2**22 + 1), "can't be opened"),
        (lie(writer, descriptor=10**6), "can't be opened"),
        (lie(writer, descriptor=plain), "not sealed"),
        (lie(writer, descriptor=write_end), "can't be mapped"),
    ):
        with pytest.raises(CodecError, match=words):
            SlabReader(slab)
    for descriptor in (plain, read_end, write_end):
        os.close(descriptor)
    writer.close()


@pytest.mark.parametrize(
    "span",
    [
        trajectory_pb2.SlabSpan(page=1, nbytes=1),
        trajectory_pb2.SlabSpan(page=0, nbytes=PAGE_BYTES + 1),
        trajectory_pb2.SlabSpan(page=2**32 - 1, nbytes=8),
        trajectory_pb2.SlabSpan(page=0, nbytes=2**63),
    ],
)
def test_spans_outside_the_slab_are_refused(span: trajectory_pb2.SlabSpan) -> None:
    writer = SlabWriter(PAGE_BYTES)
    with pytest.raises(CodecError, match="in shared memory"):
        SlabReader(writer.describe()).read(span.SerializeToString(), 2**40)
    writer.close()


def test_the_memory_cannot_shrink_under_the_receiver() -> None:
    writer = SlabWriter(PAGE_BYTES)
    with pytest.raises(PermissionError):
        os.truncate(f"/proc/self/fd/{writer.describe().descriptor}", 0)
    writer.close()
