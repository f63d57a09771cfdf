"""Rules do what they say: Prometheus' own tests of them, and that each has one."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from observing import ROOT, RULE_TESTS, RULES, alerts, recorded

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not on the path (Debian's package prometheus has it)"
)
PAGE = ROOT / "docs" / "observability.md"
SEVERITIES = {"critical", "warning", "info"}


def expectations() -> Iterator[dict[str, Any]]:
    for path in sorted(RULE_TESTS.glob("*.yaml")):
        for group in yaml.safe_load(path.read_text("utf-8"))["tests"]:
            yield from group["promql_expr_test"]


def firing(alert: str) -> list[bool]:
    """Whether it fires, for each moment at which a test looks."""
    pattern = re.compile(rf'alertname=~?"[^"]*\b{alert}\b')
    return [bool(one["exp_samples"]) for one in expectations() if pattern.search(one["expr"])]


@needs_promtool
def test_the_rules_are_valid() -> None:
    _promtool("check", "rules", *map(str, sorted(RULES.glob("*.yaml"))))


@needs_promtool
@pytest.mark.parametrize("path", sorted(RULE_TESTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_rules_pass_their_tests(path: Any) -> None:
    _promtool("test", "rules", str(path))


@needs_promtool
def test_the_configuration_for_one_machine_is_valid() -> None:
    # The one for clusters can't be checked by every promtool: Debian's is built without Kubernetes.
    _promtool("check", "config", str(RULES.parent / "local.yaml"))


@pytest.mark.parametrize("name", recorded())
def test_every_recorded_series_has_a_test(name: str) -> None:
    assert any(name in one["expr"] and one["exp_samples"] for one in expectations())


@pytest.mark.parametrize("name", alerts())
def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not(name: str) -> None:
    assert set(firing(name)) == {True, False}


@pytest.mark.parametrize("name", alerts())
def test_every_alert_says_how_bad_it_is_and_what_to_do(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in SEVERITIES
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/observability.md#{name.lower()}"
    assert f"\n### {name}\n" in PAGE.read_text("utf-8")


@pytest.mark.parametrize("name", alerts())
def test_an_alert_names_only_labels_that_it_has(name: str) -> None:
    said = set(re.findall(r"\$labels\.(\w+)", " ".join(alerts()[name]["annotations"].values())))
    shown = [
        sample["labels"]
        for one in expectations()
        for sample in one["exp_samples"]
        if f'"{name}"' in sample["labels"]
    ]
    assert shown
    for labels in shown:
        assert said <= set(re.findall(r"(\w+)=", labels))


def _promtool(*arguments: str) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
