"""``headrace train --target kubernetes``: write the overlay, apply it, follow the run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from headrace.cli.status_command import picture
from headrace.config.load import load_config
from headrace.errors import ConfigurationError
from headrace.kubernetes.kubectl import Kubectl
from headrace.kubernetes.overlay import Choices, write_overlay
from headrace.kubernetes.training import follow
from headrace.local.run_folder import RUNS, default_name
from headrace.rpc.credentials import Credentials, use_credentials
from headrace.types import LedgerGlance, RunView


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Options of ``headrace train`` that only make sense for a cluster."""

    context: str | None = None
    namespace: str | None = None
    components: tuple[str, ...] = ()
    registry: str = ""
    tag: str = ""
    render: bool = False
    detach: bool = False
    tls: Path | None = None
    token_file: Path | None = None

    def given(self) -> list[str]:
        """Flags that differ from their defaults."""
        flags = {
            "--context": self.context,
            "--namespace": self.namespace,
            "--with": self.components,
            "--registry": self.registry,
            "--tag": self.tag,
            "--render": self.render,
            "--detach": self.detach,
        }
        return [flag for flag, value in flags.items() if value]


def run_on_cluster(
    config_path: Path, overrides: Sequence[str], run_dir: Path | None, options: ClusterOptions, *, quiet: bool
) -> int:
    """Train on a cluster; returns the exit code.

    The overlay is written to ``run_dir`` (by default a new folder under ``runs``) and stays there: applying
    it again changes the run, deleting it ends the run.
    """
    config = load_config(config_path, overrides)
    folder = run_dir if run_dir is not None else RUNS / default_name(config, datetime.now())
    if folder.exists() and any(folder.iterdir()):
        raise ConfigurationError([f"--run-dir: {folder} isn't empty."])
    kubectl = Kubectl(context=options.context, namespace=options.namespace)
    choices = Choices(folder.name, options.components, options.registry, options.tag)
    write_overlay(folder, config, choices)
    manifests = kubectl.build(folder)
    if options.render:
        typer.echo(manifests, nl=False)
        return 0
    changed = kubectl.apply(folder)
    if not quiet:
        typer.echo(changed, nl=False)
        _tell_how_to_go_on(kubectl, folder)
    if options.detach:
        return 0
    use_credentials(Credentials(options.tls, options.token_file))
    return _follow(kubectl, quiet=quiet)


def _tell_how_to_go_on(kubectl: Kubectl, folder: Path) -> None:
    for what, command in (
        ("look", kubectl.command("exec", "paramserver-0", "--", "headrace", "status")),
        ("scale", kubectl.command("scale", "deployment/sampler", "--replicas=8")),
        ("end and remove", kubectl.command("delete", "-k", str(folder))),
    ):
        typer.echo(f"{what:>14}  {command}")


def _follow(kubectl: Kubectl, *, quiet: bool) -> int:
    console = Console(stderr=quiet)
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show(view: RunView, ledger: LedgerGlance) -> None:
            if not quiet:
                live.update(picture(view, ledger), refresh=True)

        def say(reason: str) -> None:
            if not quiet:
                live.update(Group(Text(f"Waiting for the paramserver: {reason}")), refresh=True)

        try:
            view, ledger = follow(kubectl, show, on_silence=say)
        except KeyboardInterrupt:
            typer.echo("The run goes on in the cluster.", err=True)
            return 0
    Console().print(picture(view, ledger))
    if view.status.phase == "failed":
        print(f"The run failed: {view.status.reason}", file=sys.stderr)
        return 1
    return 0
