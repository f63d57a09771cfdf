"""``headrace eval``, ``record`` and ``plot``: use what was trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from headrace.errors import ConfigurationError, HeadraceError
from headrace.local.plot import has_returns, plot_runs
from headrace.local.row import read_rows
from headrace.local.run_folder import RunFolder, not_a_run
from headrace.types import Array

_FRAMES_PER_S = 30
_MAX_FRAMES = 5000
_MAX_NAME_LENGTH = 200  # of a file, in characters; file systems take 255 bytes


def run_eval(run: Path, checkpoint: str, episodes: int, seed: int) -> None:
    """Evaluate a checkpoint and print what came out."""
    from headrace.local.trained import load_trained

    trained = load_trained(RunFolder(run), checkpoint)
    result = trained.evaluate(episodes, seed)
    typer.echo(
        f"version {trained.version} (after {trained.env_steps:,} environment steps): "
        f"mean return {result.mean:.2f}, standard deviation {result.std:.2f}, {len(result.returns)} episodes"
    )


def run_record(run: Path, out: Path | None, checkpoint: str, episodes: int, seed: int) -> None:
    """Film a checkpoint."""
    from headrace.local.trained import load_trained

    folder = RunFolder(run)
    path = out or folder.path / "plots" / "episode.gif"
    if path.suffix.lower() not in (".gif", ".mp4"):
        raise ConfigurationError([f"--out: {path} must end with .gif or .mp4."])
    frames: list[Array] = []

    def keep(frame: Array) -> None:
        if len(frames) < _MAX_FRAMES:
            frames.append(frame)

    returns = load_trained(folder, checkpoint).film(episodes, seed, on_frame=keep)
    _write_film(path, frames)
    typer.echo(f"{path}: {len(frames)} frames, return " + ", ".join(f"{value:.1f}" for value in returns))


def run_plot(runs: Sequence[Path], out: Path | None) -> None:
    """Draw the learning curves of runs; those that have none yet are named and left out."""
    if problems := [problem for path in runs for problem in not_a_run(RunFolder(path), "RUN")]:
        raise ConfigurationError(problems)
    rows = {str(path): read_rows(RunFolder(path).metrics) for path in runs}
    for path, found in rows.items():
        if not has_returns(found):
            typer.echo(f"{path}: nothing to plot yet, no episode has ended ({len(found)} rows of metrics).")
    drawn = {path: found for path, found in rows.items() if has_returns(found)}
    if drawn:
        typer.echo(str(plot_runs(drawn, out or _picture_of(runs))))


def _picture_of(runs: Sequence[Path]) -> Path:
    """Of one run: in its folder. Of several: where people are, named for them, so that none loses its own."""
    names = [path.resolve().name for path in runs]
    if len(names) == 1:
        return RunFolder(runs[0]).plot
    together = "__and__".join(names)
    if len(together) > _MAX_NAME_LENGTH:
        together = f"{names[0][:_MAX_NAME_LENGTH]}__and_{len(names) - 1}_more"
    return Path(f"{together}.png")


def _write_film(path: Path, frames: list[Array]) -> None:
    import imageio.v3 as imageio

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if path.suffix.lower() == ".gif":
            imageio.imwrite(path, frames, duration=1000 // _FRAMES_PER_S, loop=0)
        else:
            imageio.imwrite(path, frames, fps=_FRAMES_PER_S, macro_block_size=2)
    except (ImportError, OSError, ValueError) as error:
        hint = "" if path.suffix.lower() == ".gif" else " (mp4 needs: pip install 'headrace[render]')"
        reason = str(error).partition("\n")[0]
        raise HeadraceError(f"{path} could not be written: {reason}{hint}") from error
