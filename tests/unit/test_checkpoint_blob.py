from __future__ import annotations

import numpy as np
import pytest

from headrace.checkpoint import Blob, decode_arrays, encode_arrays, find_non_finite
from headrace.errors import CodecError


@pytest.mark.parametrize(
    "array",
    [
        np.float32(2.5).reshape(()),
        np.zeros((0, 3), np.float32),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.arange(4, dtype=">f4"),
        np.array([True, False]),
        np.arange(3, dtype=np.uint8),
        np.arange(6, dtype=np.float64)[::2],
        np.float64(1.5).reshape(()).astype(">f8"),
    ],
    ids=["scalar", "empty", "transposed", "big-endian", "bool", "uint8", "strided", "big-endian-scalar"],
)
def test_any_array_comes_back_as_it_was(array: np.ndarray) -> None:
    back = decode_arrays(encode_arrays({"x": array}))["x"]
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("<")
    np.testing.assert_array_equal(back, array)


def test_no_arrays_at_all_is_a_blob_too() -> None:
    assert Blob.encode({}).decode() == {}


def test_equal_arrays_give_equal_bytes_in_whatever_order_they_are_named() -> None:
    a, b = np.ones(3, np.float32), np.zeros(2, np.float64)
    assert Blob.encode({"a": a, "b": b}) == Blob.encode({"b": b, "a": a})


@pytest.mark.parametrize("data", [b"", b"\x00" * 7, b"\xff" * 64, encode_arrays({"x": np.ones(8)})[:-1]])
def test_what_is_not_a_blob_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_arrays(data)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_value_is_named_with_its_place(bad: float) -> None:
    weight = np.zeros((3, 4), np.float32)
    weight[1, 2] = bad
    found = find_non_finite({"fine": np.ones(3), "counts": np.arange(3), "policy/weight": weight})
    assert found == f"policy/weight[1, 2] is {np.float32(bad)}"


def test_a_bad_scalar_is_named() -> None:
    assert find_non_finite({"x": np.float32("nan").reshape(())}) == "x is nan"


def test_finite_arrays_pass() -> None:
    assert find_non_finite({"x": np.ones(3), "none": np.zeros((0,)), "flag": np.array(True)}) is None
