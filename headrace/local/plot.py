"""Learning curves as PNG, drawn without a screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def plot_runs(runs: Mapping[str, Rows], path: Path, *, target: float | None = None) -> Path:
    """Draw return against environment steps and against time, one colour a run. Returns ``path``.

    ``runs`` maps a label to its rows of ``metrics.jsonl``.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (by_steps, by_time) = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for index, (label, rows) in enumerate(runs.items()):
        colour = f"C{index % 10}"
        for axes, key in ((by_steps, "env_steps"), (by_time, "wall_s")):
            axes.plot(*_points(rows, key, "return_mean"), color=colour, label=f"{label}: training")
            axes.plot(*_points(rows, key, "eval_return"), ".", color=colour, label=f"{label}: evaluation")
    for axes, name in ((by_steps, "environment steps"), (by_time, "seconds")):
        if target is not None:
            axes.axhline(target, color="grey", linewidth=0.8, linestyle="--")
        axes.set_xlabel(name)
        axes.grid(alpha=0.3)
    by_steps.set_ylabel("return")
    by_steps.legend(fontsize="x-small", loc="best")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def has_returns(rows: Rows) -> bool:
    """Whether there is anything to draw: a return of training episodes or of an evaluation."""
    return any(row.get(key) is not None for row in rows for key in ("return_mean", "eval_return"))


def _points(rows: Rows, x: str, y: str) -> tuple[list[float], list[float]]:
    """Points where ``y`` is there and, for evaluations, new."""
    xs: list[float] = []
    ys: list[float] = []
    last = None
    for row in rows:
        value = row.get(y)
        if value is None or (y == "eval_return" and value == last):
            continue
        last = value
        xs.append(float(row[x]))
        ys.append(float(value))
    return xs, ys
