"""A real Prometheus that a test has for itself."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml
from observing import ROOT, RULES

_TIMEOUT_S = 10.0


def targets_of(run: Path, namespace: str) -> list[dict[str, Any]]:
    """The processes of a local run, as the script of the repository lists them."""
    script = ROOT / "scripts" / "prometheus_targets.py"
    done = subprocess.run(
        [sys.executable, str(script), str(run), "--namespace", namespace],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


class PrometheusServer:
    """Scrapes every second and evaluates the rules as often. Leaving the block ends it."""

    def __init__(self, program: str, folder: Path, port: int, targets: list[dict[str, Any]]) -> None:
        folder.mkdir()
        (folder / "targets.json").write_text(json.dumps(targets), "utf-8")
        local = yaml.safe_load((RULES.parent / "local.yaml").read_text("utf-8"))
        local["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        local["rule_files"] = [str(path) for path in sorted(RULES.glob("*.yaml"))]
        local["scrape_configs"][0]["file_sd_configs"] = [{"files": [str(folder / "targets.json")]}]
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(local), "utf-8")
        self._address = f"127.0.0.1:{port}"
        self._log_path = folder / "prometheus.log"
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    program,
                    f"--config.file={folder / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={self._address}",
                ],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> PrometheusServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()

    def wait_ready(self, deadline_s: float = 60.0) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + deadline_s
        while True:
            assert self.process.poll() is None, self._log_path.read_text("utf-8")
            try:
                self._get("/-/ready")
            except OSError:
                assert time.monotonic() < deadline, self._log_path.read_text("utf-8")
                time.sleep(0.1)
            else:
                return

    def has_data(self, expression: str) -> bool:
        """Whether it answers a query with at least one number just now."""
        return any(not math.isnan(float(sample["value"][1])) for sample in self._query(expression))

    def label_values(self, series: str, label: str) -> set[str]:
        """Values that a label of these series has just now."""
        return {sample["metric"][label] for sample in self._query(f"group by ({label}) ({series})")}

    def rule_problems(self) -> list[str]:
        """Rules that could not be evaluated, with what Prometheus says about it."""
        groups = json.loads(self._get("/api/v1/rules"))["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert rules
        return [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule.get("lastError")]

    def _query(self, expression: str) -> list[dict[str, Any]]:
        answer = json.loads(self._get("/api/v1/query?" + urllib.parse.urlencode({"query": expression})))
        assert answer["status"] == "success", answer
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self._address}{path}", timeout=_TIMEOUT_S) as answer:
            text: str = answer.read().decode("utf-8")
        return text
