"""Native vectors for tests: the case environments behind Gymnasium's own vector interface."""

from __future__ import annotations

from typing import Any

import environments
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv


class Opaque(VectorEnv[Any, Any, Any]):
    """A vector that resets its lanes by itself and in no other way, as compiled ones do."""

    def __init__(self, inner: SyncVectorEnv) -> None:
        self._inner = inner
        self.num_envs = inner.num_envs
        self.metadata = inner.metadata
        self.single_observation_space = inner.single_observation_space
        self.single_action_space = inner.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        assert not options
        return self._inner.reset(seed=seed)

    def step(self, actions: Any) -> Any:
        return self._inner.step(actions)


def make(
    num_envs: int, *, env: str, autoreset: str, opaque: bool = True, vector_error_at: int = 0, **kwargs: Any
) -> VectorEnv[Any, Any, Any]:
    """A vector of ``environments.<env>(**kwargs)`` with the given autoreset mode."""
    mode = AutoresetMode[autoreset.upper()]
    inner = SyncVectorEnv(
        [lambda: getattr(environments, env)(**kwargs) for _ in range(num_envs)], autoreset_mode=mode
    )
    if vector_error_at:
        return Breaking(inner, vector_error_at)
    return Opaque(inner) if opaque else inner


class Breaking(Opaque):
    """Raises in its n-th step, once and for all."""

    def __init__(self, inner: SyncVectorEnv, at: int) -> None:
        super().__init__(inner)
        self._left = at

    def step(self, actions: Any) -> Any:
        self._left -= 1
        if self._left <= 0:
            raise RuntimeError("the vector broke")
        return super().step(np.asarray(actions))
