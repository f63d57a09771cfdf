"""Pictures of the benchmark of training, drawn without a screen; each well below 100 kB."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks import training_modes, training_staleness
from benchmarks.training_rounds import CASES, MODES, RoundsResult

_DPI = 80


def plot_rounds(result: RoundsResult, folder: Path) -> Path:
    """Updates a second of every case, medians with the spread."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(7, 3.6))
    names = list(dict.fromkeys(case.name for case in CASES))
    for shift, name in enumerate(names):
        rates = [
            [one.updates_per_s for one in result.sessions if (one.mode, one.case) == (mode, name)]
            for mode in MODES
        ]
        middle = [median(each) for each in rates]
        below = [value - min(each) for value, each in zip(middle, rates, strict=True)]
        above = [max(each) - value for value, each in zip(middle, rates, strict=True)]
        places = [index + 0.27 * (shift - 1) for index in range(len(MODES))]
        axes.bar(places, middle, 0.25, yerr=[below, above], label=f"{name} learners", capsize=3)
    axes.set_xticks(range(len(MODES)), MODES)
    axes.set_ylabel(f"updates/s, work of {result.work_ms:.0f} ms")
    axes.legend(fontsize="small")
    return _save(figure, folder / "modes-rounds.png")


def plot_modes(found: Sequence[training_modes.Trained], folder: Path) -> list[Path]:
    """For each preset: return over environment steps and over seconds, equal learners above, slowed below."""
    return [
        _plot_preset(preset, [one for one in found if one.preset == preset], folder)
        for preset in dict.fromkeys(one.preset for one in found)
    ]


def _plot_preset(preset: str, found: Sequence[training_modes.Trained], folder: Path) -> Path:
    plt = _pyplot()
    kinds = sorted({one.slowed for one in found})
    figure, grid = plt.subplots(
        len(kinds), 2, figsize=(9, 2.9 * len(kinds)), sharey=True, sharex="col", squeeze=False
    )
    for (by_steps, by_time), slowed in zip(grid, kinds, strict=True):
        for one in (one for one in found if one.slowed == slowed):
            colour = f"C{training_modes.MODES.index(one.mode)}"
            label = one.mode if one.seed == found[0].seed else None
            for axes, place in ((by_steps, 0), (by_time, 1)):
                xs, ys = [point[place] for point in one.curve], [point[2] for point in one.curve]
                axes.plot(xs, ys, color=colour, label=label)
                axes.grid(alpha=0.3)
        by_steps.set_ylabel(f"return, {'one learner slowed' if slowed else 'equal learners'}")
        by_steps.legend(fontsize="x-small")
    grid[-1][0].set_xlabel("environment steps")
    grid[-1][1].set_xlabel("seconds")
    return _save(figure, folder / f"modes-{preset}.png")


def plot_staleness(found: Sequence[training_staleness.Trained], folder: Path) -> Path:
    """Return over environment steps for every lag, a panel a rule; means over the seeds."""
    plt = _pyplot()
    rules = list(training_staleness.RULES)
    lags = list(dict.fromkeys(one.lag for one in found))
    figure, panels = plt.subplots(1, len(rules), figsize=(11, 3.6), sharey=True)
    for axes, rule in zip(panels, rules, strict=True):
        for number, lag in enumerate(lags):
            curves = _curves(found, lag, rule)
            if curves:
                label = f"lag {training_staleness.lag_name(lag)}"
                axes.plot(*_mean_curve(curves), color=plt.cm.viridis(number / len(lags)), label=label)
        axes.set_title(rule, fontsize="medium")
        axes.set_xlabel("environment steps")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("return")
    panels[0].legend(fontsize="x-small")
    return _save(figure, folder / "modes-staleness.png")


def _curves(
    found: Iterable[training_staleness.Trained], lag: int | None, rule: str
) -> list[list[tuple[int, float]]]:
    return [one.curve for one in found if (one.lag, one.rule) == (lag, rule)]


def _mean_curve(curves: Sequence[Sequence[tuple[int, float]]]) -> tuple[list[int], list[float]]:
    """Curves have their points at nearly the same steps."""
    together = list(zip(*curves, strict=False))
    return [points[0][0] for points in together], [fmean(value for _, value in points) for points in together]


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def _save(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)
    _pyplot().close(figure)
    return path
