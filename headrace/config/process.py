"""What one service process is told at its start: flags, then ``HEADRACE_*`` variables, then defaults.

Everything about the run itself is in the configuration document; this is only where the process sits:
which document, which folder, which number, which addresses. The launcher passes flags; a container
passes variables.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from headrace.config.choices import is_off_policy
from headrace.config.digest import config_digest
from headrace.config.load import load_config
from headrace.config.sections import Config
from headrace.errors import ConfigurationError

PREFIX = "HEADRACE_"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""What numeric libraries read their number of threads from; each would otherwise take every core."""

_HELP = {
    "config": "the configuration document (YAML)",
    "run_dir": "folder of the run; left out: nothing is written to disk",
    "run_id": "identity of the run, equal for all its processes; left out: the name of the run's folder",
    "index": "number of this process among its kind, from 0, or a name that ends in it, such as learner-1; "
    "for a sampler also `auto`: the paramserver gives it a number, and a learner",
    "listen": "host:port to serve on; port 0: a free one",
    "advertise": "host:port at which others reach what is served; left out: where it listens",
    "metrics_port": "port of the Prometheus endpoint; 0: a free one",
    "health_port": "port for health alone, without credentials (grpc.health.v1: `liveness`, `readiness`); "
    "left out: none",
    "paramserver": "host:port of the paramserver, or of a relay",
    "watch": "host:port at which versions are watched, such as that of relays; left out: the paramserver",
    "learner": "host:port of the learner, of each with commas, or with {index} for its number",
    "replay": "host:port of each replay partition, with commas or with {index} for its number; the first one "
    "has the directory",
    "sink": "host:port of the partition that takes copies of this sampler's experience, or `auto`: one of "
    "--replay; left out or `off`: none does",
    "redis": "redis:// URL of the cold tier's Redis; left out: there is no cold tier",
    "tls": "folder with ca.crt, tls.crt and tls.key: mutual TLS everywhere; read again when they change",
    "token_file": "file with the token that every call carries; more lines: further tokens that are accepted",
    "session": "name of this start of the whole run; another one than before: the run was resumed",
    "relay": "pass versions on from --paramserver (the paramserver or another relay) to many watchers, "
    "instead of issuing them",
    "evaluate": "act greedily and report returns, instead of sampling",
    "pod": "name that people know this process by; left out: its kind and number",
    "linger": "stay until told to stop, also after the run has ended or while peers refuse this process: for "
    "where it would be started again otherwise",
}

_NEEDS = {"sampler": ("paramserver",), "learner": ("paramserver",), "paramserver": (), "replay": ()}
_SWITCHES = ("evaluate", "relay", "linger")
_ADDRESSES = ("listen", "advertise", "paramserver", "watch")
AUTO = "auto"
_OFF = "off"
_INDEX = "{index}"


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    """Place of one service process. Addresses are ``host:port``; an empty one isn't needed.

    ``index`` -1: the paramserver gives it one. ``learners``: all that a sampler may be given to.
    """

    service: str
    config_path: Path
    config: Config
    run_dir: Path | None
    run_id: str
    index: int
    listen: str
    metrics_port: int
    paramserver: str
    learners: tuple[str, ...]
    evaluate: bool
    replay: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    redis: str = ""
    session: str = ""
    relay: bool = False
    advertise: str = ""
    watch: str = ""
    health_port: int | None = None
    pod: str = ""
    linger: bool = False
    tls: Path | None = None
    token_file: Path | None = None

    @property
    def config_digest(self) -> str:
        """Digest of the document, as it rides on everything this process sends."""
        return config_digest(self.config)

    @property
    def name(self) -> str:
        """Name of this process, such as ``sampler-0``, ``evaluator-0`` or ``relay-0``."""
        return f"{self.kind}-{self.index}" if self.is_placed else self.pod or self.kind

    @property
    def kind(self) -> str:
        """What it is: its service, ``evaluator`` or ``relay``."""
        return "evaluator" if self.evaluate else "relay" if self.relay else self.service

    @property
    def is_placed(self) -> bool:
        """Whether it has its number; if not it has to ask the paramserver."""
        return self.index >= 0

    @property
    def learner(self) -> str:
        """The learner of a sampler that wasn't given one: they take turns. Empty: there are none."""
        return self.learners[self.index % len(self.learners)] if self.learners else ""

    @property
    def sink(self) -> str:
        """The partition that takes copies of this sampler's experience: they take turns. Empty: none does."""
        return self.sinks[self.index % len(self.sinks)] if self.sinks else ""

    def placed(self, index: int, learner: int) -> ProcessConfig:
        """The same process as number ``index``, with learner number ``learner``."""
        chosen = self.learners[learner : learner + 1] or self.learners
        return replace(self, index=index, learners=chosen)

    def reached_at(self, bound: str) -> str:
        """Address to tell others, of a server that is ``bound`` to host:port: --advertise, if it was given.

        Its port 0 stands for the bound one.
        """
        if not self.advertise:
            return bound
        host, _, port = self.advertise.rpartition(":")
        return f"{host}:{bound.rpartition(':')[2] if port == '0' else port}"

    @classmethod
    def from_args(cls, service: str, argv: Sequence[str], environ: Mapping[str, str]) -> ProcessConfig:
        """Read the process's place from flags, then from ``HEADRACE_*``, and load its document.

        ``argv`` is without the program's name. ``--help`` prints the flags and exits with 0.

        Raises:
            ConfigurationError: all problems of the flags, or all problems of the document.
        """
        raw = _raw_values(service, argv, environ)
        problems: list[str] = []
        run_dir = Path(raw["run_dir"]) if raw["run_dir"] else None
        switches = {name: _as_bool(name, raw[name], problems) for name in _SWITCHES}
        relay, evaluate = switches["relay"], switches["evaluate"]
        problems += _missing(raw, ("config", *(("paramserver",) if relay else _NEEDS[service])))
        if not raw["run_id"] and run_dir is None:
            problems.append(f"{_flag('run_id')}: must be given where there is no {_flag('run_dir')}.")
        addresses = {name: _as_address(name, raw[name], problems) for name in _ADDRESSES}
        index = _as_index(service, raw["index"], evaluate, problems)
        metrics_port = _as_int("metrics_port", raw["metrics_port"], 65536, problems)
        health_port = (
            _as_int("health_port", raw["health_port"], 65536, problems) if raw["health_port"] else None
        )
        if service == "replay" and index > 0 and not raw["replay"]:
            problems.append(f"{_flag('replay')}: must be given: the first partition has the directory.")
        config, document_problems = _load(raw["config"])
        if config is not None:
            problems += _missing(raw, _peers(service, config, evaluate))
            problems += _undefended(raw, config)
        num_learners, num_partitions = _counts(config)
        learners = _as_addresses("learner", raw["learner"], num_learners, problems)
        partitions = _as_addresses("replay", raw["replay"], num_partitions, problems)
        sinks = _as_sinks(raw["sink"], partitions, config, problems)
        if problems or config is None:
            raise ConfigurationError(problems or document_problems)
        return cls(
            service=service,
            config_path=Path(raw["config"]),
            config=config,
            run_dir=run_dir,
            run_id=raw["run_id"] or (run_dir.resolve().name if run_dir else ""),
            index=index,
            metrics_port=metrics_port,
            health_port=health_port,
            learners=learners,
            replay=partitions,
            sinks=sinks,
            redis=raw["redis"],
            session=raw["session"],
            tls=Path(raw["tls"]) if raw["tls"] else None,
            token_file=Path(raw["token_file"]) if raw["token_file"] else None,
            pod=raw["pod"],
            listen=addresses["listen"],
            advertise=addresses["advertise"],
            watch=addresses["watch"],
            paramserver=addresses["paramserver"],
            evaluate=evaluate,
            relay=relay,
            linger=switches["linger"],
        )


def _load(path: str) -> tuple[Config | None, list[str]]:
    """The document, or what is wrong with it; neither if there is no path."""
    try:
        return (load_config(Path(path)), []) if path else (None, [])
    except ConfigurationError as error:
        return None, list(error.problems)


def _counts(config: Config | None) -> tuple[int, int]:
    """Learners and replay partitions of the run; one each where there is no telling."""
    return (1, 1) if config is None else (config.learner.count, config.replay.partitions)


def _peers(service: str, config: Config, evaluate: bool) -> tuple[str, ...]:
    """The addresses that a process of such a run needs besides the paramserver's."""
    if is_off_policy(config):
        return ("replay",) if service == "learner" or (service == "sampler" and not evaluate) else ()
    return ("learner",) if service == "sampler" and not evaluate else ()


def _undefended(raw: Mapping[str, str], config: Config) -> list[str]:
    """What the document demands for security, and this process was not given."""
    demands = {
        "tls": config.security.tls == "mutual" and "security.tls is mutual",
        "token_file": config.security.token == "required" and "security.token is required",
    }
    return [
        f"{_flag(name)}: must be given (or {_variable(name)} set): {demand}."
        for name, demand in demands.items()
        if demand and not raw[name]
    ]


def _missing(raw: Mapping[str, str], names: Sequence[str]) -> list[str]:
    return [f"{_flag(name)}: must be given (or {_variable(name)} set)." for name in names if not raw[name]]


class _Parser(argparse.ArgumentParser):
    """Argument parser whose errors are ours."""

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError([f"{self.prog}: {message}"])


def _raw_values(service: str, argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Text of every value: the flag's, else the variable's, else the default."""
    parser = _Parser(prog=f"python -P -m services.{service}", allow_abbrev=False)
    for name, text in _HELP.items():
        kind: dict[str, Any] = {"action": "store_const", "const": "true"} if name in _SWITCHES else {}
        parser.add_argument(_flag(name), dest=name, default=None, help=f"{text} ({_variable(name)})", **kind)
    defaults = {
        "index": "0",
        "listen": "127.0.0.1:0",
        "metrics_port": "0",
        **dict.fromkeys(_SWITCHES, "false"),
    }
    given = vars(parser.parse_args(list(argv)))
    return {
        name: given[name]
        if given[name] is not None
        else environ.get(_variable(name)) or defaults.get(name, "")
        for name in _HELP
    }


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _as_int(name: str, text: str, limit: int, problems: list[str]) -> int:
    if text.isascii() and text.isdigit() and int(text) < limit:
        return int(text)
    problems.append(f"{_flag(name)}: must be a whole number from 0 to {limit - 1}, not {text!r}.")
    return 0


def _as_bool(name: str, text: str, problems: list[str]) -> bool:
    if text.lower() in ("true", "1", "yes", "false", "0", "no"):
        return text.lower() in ("true", "1", "yes")
    problems.append(f"{_variable(name)}: must be true or false, not {text!r}.")
    return False


def _as_index(service: str, text: str, evaluate: bool, problems: list[str]) -> int:
    """A number, the number at the end of a name, or -1 for ``auto``."""
    if text == AUTO and service == "sampler" and not evaluate:
        return -1
    name, _, number = text.rpartition("-")
    return _as_int("index", number if name and number else text, 2**31, problems)


def _as_sinks(
    text: str, partitions: tuple[str, ...], config: Config | None, problems: list[str]
) -> tuple[str, ...]:
    if text == AUTO:
        return () if config is None or config.replay.cold == _OFF else partitions
    return () if text in ("", _OFF) else (_as_address("sink", text, problems),)


def _as_addresses(name: str, text: str, count: int, problems: list[str]) -> tuple[str, ...]:
    """Addresses with commas between them, or one with ``{index}`` for each number below ``count``."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) == 1 and _INDEX in parts[0]:
        parts = [parts[0].replace(_INDEX, str(index)) for index in range(count)]
    return tuple(_as_address(name, part, problems) for part in parts)


def _as_address(name: str, text: str, problems: list[str]) -> str:
    host, colon, port = text.rpartition(":")
    if text and not (host and colon and port.isascii() and port.isdigit() and int(port) < 65536):
        problems.append(f"{_flag(name)}: must be host:port, such as 127.0.0.1:7000, not {text!r}.")
    return text
