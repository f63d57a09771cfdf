"""Everything that can be refused is refused here, all at once, before a service is started."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from headrace.config.digest import config_json, differing_keys
from headrace.config.load import dump_yaml, load_config
from headrace.config.sections import Config
from headrace.errors import ConfigurationError
from headrace.local.addresses import relay_ports, replay_ports
from headrace.local.cold_tier import problem_of_cold_tier
from headrace.local.layout import metrics_ports, process_environment
from headrace.local.ports import port_problem
from headrace.local.probe import Findings
from headrace.local.process import ProcessSpec, kill_group, last_words, spawn
from headrace.local.run_folder import RunFolder, folder_problems, resume_problems

PROBE_DEADLINE_S = 120.0
"""Seconds for importing and building networks, on top of the environment's own ``step_timeout_s``."""

_FIXED_ON_RESUME = ("environment.id", "algorithm.name", "run.seed")
_FIXED_SECTIONS_ON_RESUME = ("environment.kwargs", "environment.wrappers", "policy.")


def check_run(config: Config, folder: RunFolder, *, resume: bool) -> list[str]:
    """Raise ConfigurationError with every reason why this run can't be started.

    Returns what a person should be told before it is, a sentence each.
    """
    problems = _resume_problems(config, folder) if resume else folder_problems(folder.path)
    problems += port_problems(config)
    cold_problem = problem_of_cold_tier(config)
    problems += [] if cold_problem is None else [cold_problem]
    findings = try_out(config, folder.path if resume and not problems else None)
    problems += findings.problems
    if problems:
        raise ConfigurationError(problems)
    return findings.notes


def port_problems(config: Config) -> list[str]:
    """Ports that were asked for and can't be had."""
    network = config.network
    host_problem = port_problem("network.host", network.host, 0)
    if host_problem is not None:
        return [host_problem]
    wanted = [
        ("network.paramserver_port", network.paramserver_port),
        ("network.learner_port", network.learner_port),
        *(("network.replay_port", port) for port in replay_ports(config)),
        *(("network.relay_port", port) for port in relay_ports(config)),
        *(("network.metrics_port", port) for port in metrics_ports(config).values()),
    ]
    problems = []
    seen: dict[int, str] = {}
    for key, port in wanted:
        if not port:
            continue
        if port in seen:
            problems.append(f"{key}: port {port} is also wanted by {seen[port]}")
            continue
        seen[port] = key
        sentence = port_problem(key, network.host, port)
        if sentence is not None:
            problems.append(sentence)
    return problems


def try_out(config: Config, run_dir: Path | None) -> Findings:
    """Try environment, spaces, network (and checkpoint) in a process of its own; its findings, or its end."""
    with tempfile.TemporaryDirectory(prefix="headrace-probe-") as scratch:
        config_path, result = Path(scratch) / "config.yaml", Path(scratch) / "result.json"
        config_path.write_text(dump_yaml(config), "utf-8")
        arguments = [str(config_path), str(result), *([] if run_dir is None else [str(run_dir)])]
        spec = ProcessSpec(
            service="probe",
            index=0,
            command=(sys.executable, "-P", "-m", "headrace.local.probe", *arguments),
            environment=process_environment(threads=1),
            log_path=Path(scratch) / "probe.log",
        )
        deadline_s = config.environment.step_timeout_s + PROBE_DEADLINE_S
        process = spawn(spec)
        try:
            code = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            name = config.environment.id
            return Findings([f"environment.id: {name} could not be made within {deadline_s:.0f} s"])
        finally:
            kill_group(process)
            process.wait()
        if code != 0 or not result.is_file():
            said = last_words(spec.log_path)
            sentence = f"environment.id: trying {config.environment.id} out ended with exit code {code}"
            return Findings([f"{sentence}: {said}" if said else sentence])
        return Findings(**json.loads(result.read_text("utf-8")))


def _resume_problems(config: Config, folder: RunFolder) -> list[str]:
    problems = resume_problems(folder)
    if problems:
        return problems
    before = load_config(folder.config)
    changed = differing_keys(config_json(before), config_json(config))
    return [
        f"{key}: can't be changed when a run is resumed"
        for key in changed
        if key in _FIXED_ON_RESUME or key.startswith(_FIXED_SECTIONS_ON_RESUME)
    ]
