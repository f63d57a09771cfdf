"""Which tensors a flat vector holds, and where in it each number is."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.sync.layout import Layout

LAYOUT = Layout(("weight", "scale", "none", "bias"), ((2, 3), (), (0, 4), (4,)))


def arrays() -> dict[str, np.ndarray]:
    return {
        "bias": np.arange(7, 11, dtype=np.float32),
        "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scale": np.array(6, np.float32),
        "none": np.zeros((0, 4), np.float32),
    }


def test_joined_is_one_after_the_other_in_the_order_of_the_layout() -> None:
    joined = LAYOUT.join(arrays())
    assert (LAYOUT.size, joined.dtype) == (11, np.float32)
    np.testing.assert_array_equal(joined, np.arange(11))


def test_split_gives_back_what_was_joined_as_views() -> None:
    flat = LAYOUT.join(arrays())
    parts = LAYOUT.split(flat)
    assert tuple(parts) == LAYOUT.names
    for name, array in arrays().items():
        assert parts[name].shape == array.shape
        np.testing.assert_array_equal(parts[name], array)
    assert np.shares_memory(parts["weight"], flat)


def test_joined_is_a_copy_also_of_a_single_tensor() -> None:
    array = np.zeros(3, np.float32)
    assert not np.shares_memory(Layout(("only",), ((3,),)).join({"only": array}), array)


@pytest.mark.parametrize(
    ("index", "name"),
    [(0, "weight[0, 0]"), (5, "weight[1, 2]"), (6, "scale"), (7, "bias[0]"), (10, "bias[3]")],
)
def test_every_number_has_a_name(index: int, name: str) -> None:
    assert LAYOUT.name_of(index) == name


def test_beyond_the_vector_there_is_no_name() -> None:
    with pytest.raises(IndexError):
        LAYOUT.name_of(11)


def test_a_tensor_that_is_absent_or_has_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bias has shape \(2, 2\), expected \(4,\)"):
        LAYOUT.join({**arrays(), "bias": np.zeros((2, 2), np.float32)})
    with pytest.raises(KeyError, match="scale"):
        LAYOUT.join({name: array for name, array in arrays().items() if name != "scale"})
