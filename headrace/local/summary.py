"""``summary.json``: how the run ended, in numbers. Always written, also when it failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace import quarantine
from headrace.local.collector import Collector
from headrace.local.run_folder import RunFolder, write_atomically
from headrace.types import RunView


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the run ended. ``status`` is finished, interrupted or failed; ``reason`` a sentence."""

    status: str
    reason: str

    @property
    def exit_code(self) -> int:
        """Of the command line."""
        return 1 if self.status == "failed" else 0


def build_summary(
    *,
    run_id: str,
    config_digest: str,
    outcome: Outcome,
    collector: Collector,
    ledger: Mapping[str, Any],
    restarts: Mapping[str, int],
    quarantined: int,
    earlier: Mapping[str, Any],
    cold_tier: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The document. ``earlier`` is the summary of the run's earlier starts (empty: none), whose restarts
    and memory peaks count too. ``cold_tier``: transitions received, stored, evicted and lost there.
    """
    view = collector.view
    report = view.report if view is not None else None
    totals, wall_s = collector.aggregates, collector.wall_s
    env_steps = report.env_steps if report is not None else 0
    return {
        "run_id": run_id,
        "config_digest": config_digest,
        "status": outcome.status,
        "reason": outcome.reason,
        "wall_s": round(wall_s, 3),
        "env_steps": env_steps,
        "env_steps_per_s": round(env_steps / wall_s, 1) if wall_s > 0 else 0.0,
        "updates": report.updates if report is not None else 0,
        "samples_trained": report.samples_trained if report is not None else 0,
        "policy_version": _version(view),
        "return": _returns(collector, earlier.get("return")),
        "policy_lag": {
            "p50": totals.lag_quantile(0.5),
            "p95": totals.lag_quantile(0.95),
            "max": totals.lag_quantile(1.0),
        },
        "learner": {"wait_share": _rounded(totals.waited.ratio)},
        "sampler": {"throttled_share": _rounded(totals.throttled.ratio)},
        "ledger": dict(ledger),
        "restarts": _merged(restarts, earlier.get("restarts"), sum),
        "quarantined": quarantined,
        "replay": collector.aggregates.replay() or None,
        "cold_tier": cold_tier,
        "peak_rss_bytes": _merged(collector.peak_rss_bytes, earlier.get("peak_rss_bytes"), max),
    }


def write_summary(folder: RunFolder, summary: Mapping[str, Any]) -> None:
    """Write it so that a reader sees the old one or the new one, whole."""
    write_atomically(folder.summary, json.dumps(summary, indent=1, allow_nan=False) + "\n")


def read_summary(folder: RunFolder) -> dict[str, Any]:
    """The summary; empty if there is none or it can't be read."""
    try:
        summary = json.loads(folder.summary.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def count_quarantined(run_dir: Path) -> int:
    """Refused samples that are kept in the run's folder."""
    return sum(1 for _ in (run_dir / quarantine.FOLDER).glob("*.json"))


def _returns(collector: Collector, earlier: Any) -> dict[str, Any]:
    """Mean and deviation are of the last 100 training episodes; ``best_eval`` of the best evaluation.

    When the target was reached in an earlier start of the run, that stands.
    """
    view, reached = collector.view, collector.reached
    report = view.report if view is not None else None
    best = view.best if view is not None else None
    returns = {
        "mean": report.episode_return_mean if report is not None else None,
        "std": report.episode_return_std if report is not None else None,
        "episodes": report.episodes if report is not None else 0,
        "best_eval": best.return_mean if best is not None else None,
        "last_eval": collector.aggregates.evaluation_return,
        "reached_at_env_steps": reached.env_steps if reached is not None else None,
        "reached_at_s": round(reached.wall_s, 3) if reached is not None else None,
    }
    if reached is not None and isinstance(earlier, dict) and earlier.get("reached_at_s") is not None:
        returns |= {key: earlier.get(key) for key in ("reached_at_env_steps", "reached_at_s")}
    return returns


def _version(view: RunView | None) -> str | None:
    return None if view is None or view.status.version is None else str(view.status.version)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _merged(now: Mapping[str, int], earlier: Any, combine: Any) -> dict[str, int]:
    before = earlier if isinstance(earlier, dict) else {}
    return {key: combine((now.get(key, 0), int(before.get(key, 0)))) for key in {**now, **before}}
