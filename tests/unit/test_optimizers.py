"""Flat optimizers do what torch's own do, and their state is all there is to them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headrace.rl.optimizers import Adam, Optimizer, RmsProp

MAKERS: dict[str, Callable[[Tensor, Tensor], Optimizer]] = {
    "adam": lambda values, gradients: Adam(values, gradients, epsilon=1e-5),
    "fused adam": lambda values, gradients: Adam(values, gradients, epsilon=1e-5, fused=True),
    "rmsprop": lambda values, gradients: RmsProp(values, gradients, epsilon=1e-5, decay=0.99),
}


def gradients_of_step(step: int) -> Tensor:
    return torch.randn(50, generator=torch.Generator().manual_seed(step))


@pytest.mark.parametrize("name", MAKERS)
def test_same_steps_as_torch(name: str) -> None:
    values, gradients = torch.ones(50), torch.zeros(50)
    ours = MAKERS[name](values, gradients)
    theirs = torch.nn.Parameter(torch.ones(50))
    kinds = {
        "adam": lambda: torch.optim.Adam([theirs], lr=0.01, eps=1e-5),
        "fused adam": lambda: torch.optim.Adam([theirs], lr=0.01, eps=1e-5),
        "rmsprop": lambda: torch.optim.RMSprop([theirs], lr=0.01, eps=1e-5, alpha=0.99),
    }
    optimizer = kinds[name]()
    for step in range(20):
        gradients.copy_(gradients_of_step(step))
        theirs.grad = gradients_of_step(step)
        ours.step(0.01)
        optimizer.step()
    torch.testing.assert_close(values, theirs.detach())


@pytest.mark.parametrize("name", MAKERS)
def test_saved_and_loaded_goes_on_bit_for_bit(name: str) -> None:
    def run(*, interrupt: bool) -> Tensor:
        values, gradients = torch.ones(50), torch.zeros(50)
        optimizer = MAKERS[name](values, gradients)
        for step in range(6):
            if interrupt and step == 3:
                saved = optimizer.state()
                optimizer = MAKERS[name](values, gradients)
                optimizer.load(saved)
            gradients.copy_(gradients_of_step(step))
            optimizer.step(0.01)
        return values

    assert torch.equal(run(interrupt=True), run(interrupt=False))


def test_state_of_another_size_is_refused() -> None:
    small = MAKERS["adam"](torch.ones(3), torch.ones(3))
    with pytest.raises(ValueError, match="has shape"):
        small.load(MAKERS["adam"](torch.ones(4), torch.ones(4)).state())
