"""The MLP with the hand-written backward pass does what torch's automatic differentiation does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.nets.mlp import Mlp
from headrace.nets.numpy_mlp import NumpyMlp

SHAPES = [((16, 12), (3,)), ((16, 12), (1, 3)), ((8,), (2,)), ((), (3,)), ((), (1, 2))]


def build(hidden: tuple[int, ...], heads: tuple[int, ...], *, towers: int = 1, tanh: bool = False) -> Mlp:
    generator = torch.Generator().manual_seed(3)
    return Mlp(5, hidden, heads, tanh=tanh, generator=generator, towers=towers)


def by_torch(mlp: Mlp, inputs: Tensor, heads: tuple[int, ...], *, tanh: bool) -> tuple[Tensor, list[Tensor]]:
    """The outputs with a graph behind them, and the parameters in the order of ``values``."""
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in mlp.parameters().items()}
    x, layer = inputs, 0
    while f"hidden.{layer}.weight" in leaves:
        x = x @ leaves[f"hidden.{layer}.weight"] + leaves[f"hidden.{layer}.bias"]
        x, layer = torch.tanh(x) if tanh else torch.relu(x), layer + 1
    parts = torch.chunk(x, len(heads), dim=-1) if layer else [x] * len(heads)
    outputs = [part @ leaves[f"heads.{i}.weight"] + leaves[f"heads.{i}.bias"] for i, part in enumerate(parts)]
    return torch.cat(outputs, dim=-1), list(leaves.values())


@pytest.mark.parametrize("towers", [1, 2])
@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize(("hidden", "heads"), SHAPES)
def test_outputs_and_gradients_are_those_of_automatic_differentiation(
    hidden: tuple[int, ...], heads: tuple[int, ...], tanh: bool, towers: int
) -> None:
    mlp = build(hidden, heads, towers=towers, tanh=tanh)
    inputs = torch.randn(7, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
    expected, parameters = by_torch(mlp, inputs, heads, tanh=tanh)
    outputs = mlp.forward(inputs.detach())
    torch.testing.assert_close(outputs, expected)

    upstream = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(2))
    wanted = torch.autograd.grad(expected, [inputs, *parameters], upstream)
    mlp.backward(upstream.clone())
    torch.testing.assert_close(mlp.gradients, torch.cat([each.reshape(-1) for each in wanted[1:]]))
    before = mlp.gradients.clone()
    gradient = mlp.input_gradient(upstream.clone(), slice(2, 5))
    torch.testing.assert_close(gradient, wanted[0][:, 2:5])
    assert torch.equal(mlp.gradients, before)


@pytest.mark.parametrize(("hidden", "heads"), SHAPES)
@pytest.mark.parametrize("tanh", [False, True])
def test_numpy_computes_the_same(hidden: tuple[int, ...], heads: tuple[int, ...], tanh: bool) -> None:
    mlp = build(hidden, heads, tanh=tanh)
    ours = NumpyMlp(len(hidden), len(heads), tanh=tanh)
    ours.load({f"network/{name}": value for name, value in mlp.parameters().items()}, "network/")
    rows = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    theirs = mlp.forward(torch.tensor(rows)).numpy()
    np.testing.assert_allclose(ours.forward(rows).T, theirs, rtol=1e-5, atol=1e-6)


def test_a_clone_keeps_its_values_when_the_original_learns() -> None:
    mlp = build((8,), (2,))
    clone, inputs = mlp.clone(), torch.ones(1, 5)
    before = clone.forward(inputs)
    torch.testing.assert_close(before, mlp.forward(inputs))
    mlp.values.add_(1.0)
    assert torch.equal(clone.forward(inputs), before)


def test_parameters_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="has shape"):
        build((8,), (2,)).load(build((9,), (2,)).parameters())
    with pytest.raises(ValueError, match="absent"):
        build((8, 8), (2,)).load(build((8,), (2,)).parameters())
