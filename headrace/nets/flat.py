"""Named parameters: in one flat vector, copied out, and taken in again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from headrace.types import Array


def flatten(parameters: Sequence[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """Move parameters and gradients into two flat vectors and leave views of them in their place."""
    values = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    gradients = torch.zeros_like(values)
    offset = 0
    for parameter in parameters:
        end = offset + parameter.numel()
        parameter.data = values[offset:end].view(parameter.shape)
        parameter.grad = gradients[offset:end].view(parameter.shape)
        offset = end
    return values, gradients


def copy_out(named: Mapping[str, Tensor]) -> dict[str, Array]:
    """Copies of all tensors by name."""
    return {name: np.array(value.detach().cpu().numpy()) for name, value in named.items()}


@torch.no_grad()
def take_in(named: Mapping[str, Tensor], parameters: Mapping[str, Array]) -> None:
    """Inverse of :func:`copy_out`; ValueError, and nothing changed, if one is absent or has another shape."""
    for name, value in named.items():
        if name not in parameters:
            raise ValueError(f"parameter {name} is absent; was it made with another policy.network?")
        shape, expected = tuple(parameters[name].shape), tuple(value.shape)
        if shape != expected:
            raise ValueError(f"parameter {name} has shape {shape}, expected {expected}")
    for name, value in named.items():
        value.copy_(torch.tensor(parameters[name]))
