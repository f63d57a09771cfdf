"""What one service process is told at its start: flags, then ``HEADRACE_*`` variables, then defaults.

Everything about the run itself is in the configuration document; this is only where the process sits:
which document, which folder, which number, which addresses. The launcher passes flags; a container
passes variables.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from headrace.config.choices import is_off_policy
from headrace.config.digest import config_digest
from headrace.config.load import load_config
from headrace.config.sections import Config
from headrace.errors import ConfigurationError

PREFIX = "HEADRACE_"

_HELP = {
    "config": "the configuration document (YAML)",
    "run_dir": "folder of the run; left out: nothing is written to disk",
    "run_id": "identity of the run, equal for all its processes; left out: the name of the run's folder",
    "index": "number of this process among its kind, from 0",
    "listen": "host:port to serve on; port 0: a free one",
    "metrics_port": "port of the Prometheus endpoint; 0: a free one",
    "paramserver": "host:port of the paramserver",
    "learner": "host:port of the learner",
    "replay": "host:port of each replay partition, with commas; the first one has the directory",
    "sink": "host:port of the partition that takes copies of this sampler's experience; left out: none does",
    "redis": "redis:// URL of the cold tier's Redis; left out: there is no cold tier",
    "tls": "folder with ca.crt, tls.crt and tls.key: mutual TLS everywhere; read again when they change",
    "token_file": "file with the token that every call carries; more lines: further tokens that are accepted",
    "session": "name of this start of the whole run; another one than before: the run was resumed",
    "relay": "pass versions on from --paramserver (the paramserver or another relay) to many watchers, "
    "instead of issuing them",
    "evaluate": "act greedily and report returns, instead of sampling",
}

_NEEDS = {"sampler": ("paramserver",), "learner": ("paramserver",), "paramserver": (), "replay": ()}
_SWITCHES = ("evaluate", "relay")
_ADDRESSES = ("listen", "paramserver", "learner", "sink")


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    """Place of one service process. Addresses are ``host:port``; an empty one isn't needed."""

    service: str
    config_path: Path
    config: Config
    run_dir: Path | None
    run_id: str
    index: int
    listen: str
    metrics_port: int
    paramserver: str
    learner: str
    evaluate: bool
    replay: tuple[str, ...] = ()
    sink: str = ""
    redis: str = ""
    session: str = ""
    relay: bool = False
    tls: Path | None = None
    token_file: Path | None = None

    @property
    def config_digest(self) -> str:
        """Digest of the document, as it rides on everything this process sends."""
        return config_digest(self.config)

    @property
    def name(self) -> str:
        """Name of this process, such as ``sampler-0``, ``evaluator-0`` or ``relay-0``."""
        kind = "evaluator" if self.evaluate else "relay" if self.relay else self.service
        return f"{kind}-{self.index}"

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
        evaluate = _as_bool("evaluate", raw["evaluate"], problems)
        relay = _as_bool("relay", raw["relay"], problems)
        problems += _missing(raw, ("config", *(("paramserver",) if relay else _NEEDS[service])))
        if not raw["run_id"] and run_dir is None:
            problems.append(f"{_flag('run_id')}: must be given where there is no {_flag('run_dir')}.")
        addresses = {name: _as_address(name, raw[name], problems) for name in _ADDRESSES}
        index = _as_int("index", raw["index"], 2**31, problems)
        metrics_port = _as_int("metrics_port", raw["metrics_port"], 65536, problems)
        partitions = tuple(
            _as_address("replay", part.strip(), problems) for part in raw["replay"].split(",") if part.strip()
        )
        if service == "replay" and index and not partitions:
            problems.append(f"{_flag('replay')}: must be given: the first partition has the directory.")
        config, document_problems = _load(raw["config"])
        if config is not None:
            problems += _missing(raw, _peers(service, config, evaluate))
            problems += _undefended(raw, config)
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
            evaluate=evaluate,
            relay=relay,
            replay=partitions,
            redis=raw["redis"],
            session=raw["session"],
            tls=Path(raw["tls"]) if raw["tls"] else None,
            token_file=Path(raw["token_file"]) if raw["token_file"] else None,
            **addresses,
        )


def _load(path: str) -> tuple[Config | None, list[str]]:
    """The document, or what is wrong with it; neither if there is no path."""
    try:
        return (load_config(Path(path)), []) if path else (None, [])
    except ConfigurationError as error:
        return None, list(error.problems)


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


def _as_address(name: str, text: str, problems: list[str]) -> str:
    host, colon, port = text.rpartition(":")
    if text and not (host and colon and port.isascii() and port.isdigit() and int(port) < 65536):
        problems.append(f"{_flag(name)}: must be host:port, such as 127.0.0.1:7000, not {text!r}.")
    return text
