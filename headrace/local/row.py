"""One row of ``metrics.jsonl``: the run as it stands, made once every ``metrics.interval_s``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_TAIL_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Row:
    """Totals are of the whole run, also over restarts and resumes; rates and shares of the last interval."""

    time: float
    """Wall-clock seconds since the epoch, for people."""
    wall_s: float
    """Seconds the run has been going, over all its starts."""
    phase: str
    policy_version: int
    env_steps: int
    """Environment steps trained on."""
    updates: int
    samples_trained: int
    episodes: int
    return_mean: float | None
    """Over the last 100 training episodes."""
    return_std: float | None
    eval_return: float | None
    """Mean return of the newest evaluation."""
    best_eval: float | None
    env_steps_per_s: float | None
    """Environment steps taken by all samplers, a second."""
    updates_per_s: float | None
    input_fill_ratio: float | None
    policy_lag_mean: float | None
    """Of the fragments in the newest update, in updates."""
    wait_share: float | None
    """Share of the learner's time spent waiting."""
    throttled_share: float | None
    """Share of the samplers' time spent waiting."""
    restarts: int
    rss_bytes: Mapping[str, int] = field(default_factory=dict)
    """Resident memory by service, all its processes together."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """What the algorithm reported of the newest update."""
    replay: Mapping[str, float] = field(default_factory=dict)
    """Replay: hot_fill, cold_fill, hot_hits (share of draws), drift, all 0 to 1. Empty: there is none."""
    rounds: Mapping[str, float] = field(default_factory=dict)
    """Several learners: learners (connected), contribution_lag (mean, in versions), refused (share of
    contributions), and where local steps are chosen by the run local_steps, idle_share and return_jitter.
    Empty where one learner publishes."""
    checkpoint_problem: str = ""
    """Why no checkpoint can be written just now; empty if they can."""

    def to_json(self) -> str:
        """One line of strict JSON; what isn't finite is null."""
        return json.dumps(_finite(asdict(self)), separators=(",", ":"), allow_nan=False)

    def scalars(self) -> dict[str, float | None]:
        """The same for TensorBoard, by tag."""
        return {
            "return/training": self.return_mean,
            "return/evaluation": self.eval_return,
            "rate/env_steps_per_s": self.env_steps_per_s,
            "rate/updates_per_s": self.updates_per_s,
            "flow/input_fill_ratio": self.input_fill_ratio,
            "flow/policy_lag_mean": self.policy_lag_mean,
            "flow/learner_wait_share": self.wait_share,
            "flow/sampler_throttled_share": self.throttled_share,
            "run/updates": float(self.updates),
            "run/restarts": float(self.restarts),
            **{f"rss_bytes/{service}": float(n) for service, n in self.rss_bytes.items()},
            **{f"replay/{name}": value for name, value in self.replay.items()},
            **{f"rounds/{name}": value for name, value in self.rounds.items()},
            **{f"loss/{name}": value for name, value in self.losses.items()},
        }


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a ``metrics.jsonl``; a line torn by a kill is left out. Empty if there is no file."""
    rows: list[dict[str, Any]] = []
    if not path.is_file():
        return rows
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def last_row(path: Path) -> dict[str, Any]:
    """The newest whole row of a ``metrics.jsonl``; empty if there is none."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            return row
    return {}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
