"""The state of a random generator as an array, for checkpoints."""

from __future__ import annotations

import numpy as np

from headrace.types import Array

RNG_STATE = "rng/state"
"""Its name in a training state."""

_WORD = 2**64


def pack_rng(rng: np.random.Generator) -> Array:
    """The state of a PCG64 generator as six words, uint64."""
    state = rng.bit_generator.state
    inner, increment = state["state"]["state"], state["state"]["inc"]
    words = [*divmod(inner, _WORD), *divmod(increment, _WORD), state["has_uint32"], state["uinteger"]]
    return np.array(words, np.uint64)


def unpack_rng(rng: np.random.Generator, words: Array) -> None:
    """Inverse of :func:`pack_rng`, into ``rng``."""
    high, low, inc_high, inc_low, has_uint32, uinteger = (int(word) for word in words)
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high * _WORD + low, "inc": inc_high * _WORD + inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
