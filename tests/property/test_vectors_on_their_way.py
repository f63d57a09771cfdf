"""Flat vectors as bytes, held against numpy's and torch's own conversions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.errors import CodecError
from headrace.sync.aggregation import FlatArray
from headrace.sync.vectors import VectorType, decode_vector, encode_vector

# Any pattern of 32 bits: NaN with any payload, infinities, subnormals, ties.
any_vector = hnp.arrays(np.uint32, st.integers(0, 50)).map(lambda bits: bits.view(np.float32))
TYPES: tuple[VectorType, ...] = ("float32", "float16", "bfloat16")


def there_and_back(vector: FlatArray, kind: VectorType) -> FlatArray:
    return decode_vector(encode_vector(vector, kind), kind, len(vector))


def assert_same_numbers(actual: FlatArray, expected: FlatArray) -> None:
    """Bit for bit, but any NaN is as good as another."""
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), nan)
    np.testing.assert_array_equal(actual.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


@given(vector=any_vector)
def test_float32_changes_no_bit(vector: FlatArray) -> None:
    assert there_and_back(vector, "float32").tobytes() == vector.tobytes()


@given(vector=any_vector)
def test_bfloat16_rounds_as_torch_does(vector: FlatArray) -> None:
    expected = torch.tensor(vector).to(torch.bfloat16).to(torch.float32).numpy()
    assert_same_numbers(there_and_back(vector, "bfloat16"), expected)


@given(vector=any_vector)
def test_float16_rounds_as_numpy_does_within_its_range_and_stays_finite(vector: FlatArray) -> None:
    with np.errstate(over="ignore"):
        expected = vector.astype(np.float16).astype(np.float32)
    overflows = np.isfinite(vector) & np.isinf(expected)
    expected[overflows] = np.copysign(np.float32(65504.0), vector[overflows])
    assert_same_numbers(there_and_back(vector, "float16"), expected)


@pytest.mark.parametrize("kind", TYPES)
def test_what_is_not_finite_is_so_at_the_other_end(kind: VectorType) -> None:
    # A NaN whose payload lies in the lower half only would be an infinity, if the half were just cut off.
    low = np.array([0x7F800001, 0xFF800001], np.uint32).view(np.float32)
    vector = np.array([np.nan, np.inf, -np.inf, *low], np.float32)
    assert_same_numbers(there_and_back(vector, kind), vector)


@pytest.mark.parametrize(
    ("bits", "expected"),
    [(0x3F808000, 0x3F80), (0x3F818000, 0x3F82), (0x3F808001, 0x3F81), (0x3FFFFFFF, 0x4000), (1, 0)],
    ids=["tie to even below", "tie to even above", "over a tie", "carry", "smallest subnormal"],
)
def test_bfloat16_is_to_nearest_ties_to_even(bits: int, expected: int) -> None:
    data = encode_vector(np.array([bits], np.uint32).view(np.float32), "bfloat16")
    assert int.from_bytes(data, "little") == expected


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("change", [-1, 1])
def test_another_length_is_refused(kind: VectorType, change: int) -> None:
    data = encode_vector(np.zeros(4, np.float32), kind)
    with pytest.raises(CodecError, match=f"expected {4 + change} numbers of type {kind}"):
        decode_vector(data, kind, 4 + change)
