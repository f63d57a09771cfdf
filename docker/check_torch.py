"""Ends an image's build whose torch isn't of the wanted kind: ``python check_torch.py cpu|cuda``."""

from __future__ import annotations

import sys
from importlib.metadata import distributions


def main(wanted: str) -> str | None:
    """What is wrong, in a sentence; None: nothing."""
    import torch

    names = {str(found.metadata["Name"]).lower() for found in distributions()}
    libraries = sorted(name for name in names if name.startswith(("nvidia-", "triton")))
    has_cuda = torch.version.cuda is not None or bool(libraries)
    if wanted == "cuda" and not has_cuda:
        return "TORCH=cuda, but this torch has no CUDA: name an index that has such a build (TORCH_PIP_ARGS)."
    if wanted != "cuda" and has_cuda:
        return (
            f"this torch has CUDA ({torch.__version__}, {', '.join(libraries)}): name an index that has a "
            "build for CPUs (TORCH_PIP_ARGS), put its wheel into docker/wheels, or say that CUDA is wanted "
            "(TORCH=cuda)."
        )
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
