"""Encoded observations as a network's inputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headrace.nets.features import FeatureEncoder
from headrace.nets.networks import IMAGE
from headrace.nets.twin_mlp import FLAT
from headrace.types import Array


def input_tensors(
    encoder: FeatureEncoder, leaves: Mapping[str, Array], device: torch.device
) -> dict[str, Tensor]:
    """Encoded observations ``[N, ...]`` as tensors on ``device``. Copies."""
    inputs = {
        IMAGE + path: torch.tensor(image, device=device) for path, image in encoder.images(leaves).items()
    }
    if encoder.num_features:
        inputs[FLAT] = torch.tensor(encoder.flat(leaves), device=device)
    return inputs
