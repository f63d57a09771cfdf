"""How fast one sampler process delivers fragments, against a raw loop: the same environment and policy in one
process with no Headrace. Both alternately in one run.

    python -P -m benchmarks.rollout [--environments CartPole-v1 Pendulum-v1] [--rounds 5] [--seconds 4]

* ``raw``: gymnasium's SyncVectorEnv, a torch policy (2 x 64 tanh, 1 thread), sampled actions
* ``sampler``: steps per second in fragments that a learner's door has checked, acknowledged and settled;
  the sampler, its parameter server and the door are three real processes
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from headrace.clients.parameters import PublishClient
from headrace.config.digest import config_digest, config_json
from headrace.config.load import dump_yaml
from headrace.config.sections import Config
from headrace.envs.factory import probe
from headrace.envs.validation import FragmentCheck
from headrace.local.layout import process_environment
from headrace.local.process import MALLOC_ENVIRONMENT
from headrace.registry import read_records
from headrace.rl.algorithm import make_algorithm
from headrace.rpc.fragments import TrajectoryServicer
from headrace.rpc.handshake import Handshake
from headrace.rpc.server import serve
from headrace.types import Array, Fragment, PolicyVersion, TrainingReport
from services.learner.intake import Intake

RUN_ID = "bench"
LANES = 32
FRAGMENT_LENGTH = 128
START_S = 60.0
WARM_UP_S = 1.0


def make_config(environment_id: str) -> Config:
    """One sampler that runs freely: no pacing, no staleness."""
    return Config.model_validate(
        {
            "run": {"stop": {"updates": 1_000_000_000}},
            "environment": {"id": environment_id, "lanes": LANES},
            "algorithm": {"name": "ppo", "batch_steps": LANES * FRAGMENT_LENGTH},
            "sampler": {"fragment_length": FRAGMENT_LENGTH},
            "sync": {"lag_control": "drop", "max_policy_lag": 1_000_000_000},
            "stream": {"capacity_bytes": 2**20},
            "validation": {"check_space": True},
        }
    )


class RawLoop:
    """Environment and policy in one process, as one writes it in an afternoon."""

    def __init__(self, environment_id: str) -> None:
        torch.set_num_threads(1)
        make = [lambda: gym.make(environment_id)] * LANES
        self._environments = gym.vector.SyncVectorEnv(make, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
        space = self._environments.single_action_space
        observation_shape = self._environments.single_observation_space.shape
        assert observation_shape is not None
        self._discrete = isinstance(space, gym.spaces.Discrete)
        outputs = int(space.n) if isinstance(space, gym.spaces.Discrete) else int(np.prod(space.shape or ()))
        width = int(np.prod(observation_shape))
        self._policy, self._value = self._tower(width, outputs), self._tower(width, 1)
        self._observation, _ = self._environments.reset(seed=0)

    @staticmethod
    def _tower(inputs: int, outputs: int) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(inputs, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, outputs),
        )

    def run(self, seconds: float) -> float:
        """Environment steps per second over about ``seconds``."""
        began, steps = time.perf_counter(), 0
        with torch.no_grad():
            while time.perf_counter() - began < seconds:
                observation = torch.as_tensor(self._observation, dtype=torch.float32)
                outputs = self._policy(observation)
                distribution: Any = (
                    torch.distributions.Categorical(logits=outputs)
                    if self._discrete
                    else torch.distributions.Normal(outputs, 1.0)
                )
                action = distribution.sample()
                distribution.log_prob(action)
                self._value(observation)
                self._observation, *_ = self._environments.step(action.numpy())
                steps += LANES
        return steps / (time.perf_counter() - began)


class SamplerProcess:
    """A real sampler and its parameter server; this process is the learner's door."""

    def __init__(self, config: Config) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._run_dir = Path(self._folder.name) / RUN_ID
        self._run_dir.mkdir()
        (self._run_dir / "config.yaml").write_text(dump_yaml(config), "utf-8")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._handshake = Handshake(RUN_ID, config_digest(config), config_json=config_json(config))
        self._intake = Intake(config)
        self._intake.restore([], PolicyVersion(1, 0))
        spec = probe(config.environment)
        servicer = TrajectoryServicer(
            self._intake,
            self._handshake,
            max_fragment_bytes=2**26,
            check=FragmentCheck(spec, config.validation),
        )
        self._server = serve(address="127.0.0.1:0", handlers=[servicer.handler()], max_streams=4)
        self._start("paramserver")
        address = self._wait_for_address("paramserver-0")
        self._publisher = PublishClient(address, self._handshake)
        self._version: PolicyVersion | None = None
        self.parameters = make_algorithm(config, spec).acting_parameters()
        self.publish(self.parameters)
        self._start("sampler", "--paramserver", address, "--learner", self._server.address)
        self._updates = 0

    def publish(self, parameters: Mapping[str, Array]) -> PolicyVersion:
        """Give the sampler new parameters."""
        number = 0 if self._version is None else self._version.number + 1
        report = TrainingReport(number, number, number, 0, None, None, {})
        self._version = self._publisher.publish(self._version, parameters, None, report, []).version
        return self._version

    def __enter__(self) -> SamplerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(30.0)
        self._publisher.close()
        self._intake.stop()
        self._server.stop(0.0)
        self._folder.cleanup()

    def run(self, seconds: float) -> float:
        """Settle whatever comes for ``seconds`` after a warm-up; steps per second. Then let it park."""
        self._settle_for(WARM_UP_S)
        began = time.perf_counter()
        steps = self._settle_for(seconds)
        return steps / (time.perf_counter() - began)

    def take(self, timeout_s: float) -> list[Fragment]:
        """The next fragments that have come in, settled at once; none after ``timeout_s`` seconds."""
        taken = self._intake.next_batch(timeout_s=timeout_s)
        if taken is None:
            return []
        self._updates += 1
        self._intake.accounts(including=taken)
        self._intake.commit(taken, PolicyVersion(1, self._updates))
        return taken.fragments

    def _settle_for(self, seconds: float) -> int:
        deadline, steps = time.perf_counter() + seconds, 0
        while time.perf_counter() < deadline:
            steps += sum(fragment.num_transitions for fragment in self.take(0.05))
        return steps

    def _start(self, service: str, *arguments: str) -> None:
        command = [sys.executable, "-P", "-m", f"services.{service}", "--run-dir", str(self._run_dir)]
        command += ["--config", str(self._run_dir / "config.yaml"), *arguments]
        root = str(Path(__file__).parent.parent)
        environment = {**os.environ, **MALLOC_ENVIRONMENT, **process_environment(1), "PYTHONPATH": root}
        log = (self._run_dir / f"{service}.log").open("wb")
        self._processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def _wait_for_address(self, name: str) -> str:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for record in read_records(self._run_dir):
                if record.name == name:
                    return record.address
            threading.Event().wait(0.05)
        said = (self._run_dir / f"{name.split(chr(45))[0]}.log").read_text("utf-8", "replace")[-2000:]
        raise TimeoutError(f"{name} did not come up:\n{said}")


def measure(environment_id: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Alternate raw loop and sampler; medians, spread, and the median of the rounds' ratios."""
    raw, sampler = [], []
    with SamplerProcess(make_config(environment_id)) as process:
        loop = RawLoop(environment_id)
        process.run(seconds=1.0)
        for _ in range(rounds):
            raw.append(loop.run(seconds))
            sampler.append(process.run(seconds))
    ratios = [ours / theirs for ours, theirs in zip(sampler, raw, strict=True)]
    return {
        "environment": environment_id,
        "raw_steps_per_s": median(raw),
        "sampler_steps_per_s": median(sampler),
        "ratio": median(ratios),
        "spread": [min(ratios), max(ratios)],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--environments", nargs="+", default=["CartPole-v1", "Pendulum-v1"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    for environment_id in arguments.environments:
        result = measure(environment_id, arguments.rounds, arguments.seconds)
        results.append(result)
        print(
            f"{environment_id:16} raw {result['raw_steps_per_s']:>9,.0f} steps/s"
            f"   sampler {result['sampler_steps_per_s']:>9,.0f} steps/s   ratio {result['ratio']:.2f}"
            f"   ({result['spread'][0]:.2f} to {result['spread'][1]:.2f})",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1), "utf-8")


if __name__ == "__main__":
    main()
