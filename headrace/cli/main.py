"""The command line's entry point: what commands there are, and what becomes of an error.

Exit codes: 0 done; 1 the run failed, with the reason; 2 usage or configuration error, every problem
on its own line; 3 the verdict is negative. Commands import what they need when they are called, so
that ``headrace --help`` is quick.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.config_commands import app as config_app
from headrace.errors import ConfigurationError, HeadraceError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NEGATIVE = 3
DEBUG_VARIABLE = "HEADRACE_DEBUG"

app = typer.Typer(
    name="headrace",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Distributed reinforcement learning: many asynchronous, fallible parts, one stable training run.",
)
app.add_typer(config_app, name="config")

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
CheckpointOption = Annotated[
    str,
    typer.Option(
        "--checkpoint",
        metavar="best|latest|N",
        help="Which checkpoint: the best, the latest, or a version number.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of the environments and of the policy.")]


ContextOption = Annotated[
    str | None, typer.Option("--context", help="kubectl's context.", rich_help_panel="On a cluster")
]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", help="The namespace.", rich_help_panel="On a cluster")
]
ComponentsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="COMPONENT",
        help="A component of deploy/k8s besides those that CONFIG needs, such as network-policy; repeatable.",
        rich_help_panel="On a cluster",
    ),
]
RegistryOption = Annotated[
    str,
    typer.Option(
        "--registry", metavar="PREFIX/", help="Stands before image names.", rich_help_panel="On a cluster"
    ),
]
TagOption = Annotated[
    str,
    typer.Option("--tag", help="Tag of the images; default: this version.", rich_help_panel="On a cluster"),
]
RenderOption = Annotated[
    bool,
    typer.Option(
        "--render",
        help="Write the overlay, print its manifests, apply nothing.",
        rich_help_panel="On a cluster",
    ),
]
DetachOption = Annotated[
    bool, typer.Option("--detach", help="Apply and leave.", rich_help_panel="On a cluster")
]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        from headrace import __version__

        typer.echo(__version__)
        raise typer.Exit()


@app.command()
def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG [key=value ...]", help="A YAML file, then overrides with dotted keys."
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="DIR", help="The run's own folder; must be new or empty."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume", metavar="RUN", help="Go on with this run, in its folder, with its configuration."
        ),
    ] = None,
    samplers: Annotated[
        int | None, typer.Option("--samplers", min=1, help="Short for sampler.count=N.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but the summary.")] = False,
    target: Annotated[
        str,
        typer.Option("--target", metavar="local|kubernetes", help="Where: on this machine, or on a cluster."),
    ] = "local",
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    components: ComponentsOption = None,
    registry: RegistryOption = "",
    tag: TagOption = "",
    render: RenderOption = False,
    detach: DetachOption = False,
) -> None:
    """Train. Ctrl-C drains and saves; a second one stops hard. (A run on a cluster goes on.)"""
    try:
        from headrace.cli.kubernetes_command import ClusterOptions
        from headrace.cli.train_command import run_train

        options = ClusterOptions(context, namespace, tuple(components or ()), registry, tag, render, detach)
        code = run_train(arguments or [], run_dir, resume, samplers, target, options, quiet=quiet)
    except KeyboardInterrupt as error:
        raise HeadraceError("Interrupted: nothing was started.") from error
    raise typer.Exit(code)


@app.command("eval")
def evaluate(
    run: RunArgument,
    checkpoint: CheckpointOption = "best",
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="How many episodes.")] = 100,
    seed: SeedOption = 0,
) -> None:
    """Act greedily with a checkpoint; print mean and standard deviation of the returns."""
    from headrace.cli.use_commands import run_eval

    run_eval(run, checkpoint, episodes, seed)


@app.command()
def record(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="F.gif|F.mp4", help="Default: RUN/plots/episode.gif.")
    ] = None,
    checkpoint: CheckpointOption = "best",
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="How many episodes.")] = 1,
    seed: SeedOption = 0,
) -> None:
    """Film a checkpoint at work."""
    from headrace.cli.use_commands import run_record

    run_record(run, out, checkpoint, episodes, seed)


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="F.png",
            help="Default: of one run plots/learning_curve.png in its folder, of several A__and__B.png here.",
        ),
    ] = None,
) -> None:
    """Draw learning curves, of several runs in one picture."""
    from headrace.cli.use_commands import run_plot

    run_plot(runs, out)


@app.command()
def top(
    run: RunArgument,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and leave.")] = False,
) -> None:
    """Live view of every service: rates, buffer levels, lag, throttling, restarts."""
    from headrace.cli.inspect_commands import run_top

    run_top(run, once=once)


@app.command()
def ledger(
    run: RunArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Where every transition went, by sampler incarnation. Exit code 3 if the ledger doesn't balance."""
    from headrace.cli.inspect_commands import run_ledger

    raise typer.Exit(0 if run_ledger(run, as_json=as_json) else EXIT_NEGATIVE)


@app.command()
def trace(
    run: RunArgument,
    fragment_id: Annotated[
        str, typer.Argument(metavar="FRAGMENT_ID", help="sampler/incarnation/sequence, e.g. sampler-0/1/17")
    ],
) -> None:
    """Where a piece of data came from, and what became of it."""
    from headrace.cli.inspect_commands import run_trace

    run_trace(run, fragment_id)


@app.command()
def status(
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="The paramserver. Default: HEADRACE_PARAMSERVER, else 127.0.0.1:7000 (a port-forward).",
        ),
    ] = None,
    tls: Annotated[
        Path | None, typer.Option("--tls", metavar="DIR", help="Certificates. Default: HEADRACE_TLS.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="F", help="Default: HEADRACE_TOKEN_FILE.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[
        float | None, typer.Option("--watch", metavar="SECONDS", help="Again and again, until the run ends.")
    ] = None,
) -> None:
    """A run on a cluster at a glance: phase, returns, ledger, samplers. Exit code 3: it doesn't balance."""
    from headrace.cli.status_command import run_status

    raise typer.Exit(run_status(address, tls=tls, token_file=token_file, as_json=as_json, watch_s=watch))


@app.command()
def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; nothing there is overwritten.")],
    days: Annotated[int, typer.Option("--days", min=1, help="Days that the certificate is valid.")] = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Only a new certificate, of the CA that is in DIR.")
    ] = False,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Also manifests of the Secrets headrace-tls, headrace-token.")
    ] = False,
) -> None:
    """Make a CA, a certificate for mutual TLS between services, and a token (docs/security.md)."""
    from headrace.cli.certs_command import run_certs

    run_certs(folder, days=days, renew=renew, kubernetes=kubernetes)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="[NAME|all] [ARGS]", help="Which; left out: list them. ARGS are its own.")
    ] = "",
) -> None:
    """Measure, as docs/benchmarks.md does. `headrace bench NAME -- --help` says what NAME takes."""
    from headrace.cli.bench_command import run_bench

    raise typer.Exit(run_bench(name, context.args))


def main() -> None:
    """Run the command line and exit. People see sentences; HEADRACE_DEBUG=1 shows tracebacks as well."""
    try:
        app()
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        sys.exit(report_error(error))


def report_error(error: Exception) -> int:
    """Say on stderr what went wrong; returns the exit code."""
    if isinstance(error, ConfigurationError):
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return EXIT_USAGE
    if isinstance(error, HeadraceError):
        print(error, file=sys.stderr)
        return EXIT_FAILED
    print(
        f"headrace failed: {type(error).__name__}: {error} (set {DEBUG_VARIABLE}=1 to see where)",
        file=sys.stderr,
    )
    return EXIT_FAILED
