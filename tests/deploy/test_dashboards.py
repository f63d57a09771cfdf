"""The dashboards are what Grafana can load and a reader can understand."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from observing import DASHBOARDS, ROOT, dashboard, panels

# Of Grafana's value formats (categories.ts of @grafana/data).
UNITS = {"none", "short", "percentunit", "s", "bytes", "Bps", "cps", "dateTimeAsIso"}
KINDS = {"timeseries", "stat", "table"}
COMPONENT = ROOT / "deploy/k8s/components/grafana"

by_dashboard = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)


def test_there_is_one_for_the_run_and_one_for_each_service() -> None:
    names = {path.stem.removeprefix("headrace-") for path in DASHBOARDS}
    assert names == {"overview", "sampler", "learner", "paramserver", "replay"}


@by_dashboard
def test_panels_have_numbers_of_their_own_and_do_not_overlap(path: Path) -> None:
    everything = dashboard(path)["panels"]
    assert max(Counter(panel["id"] for panel in everything).values()) == 1
    for one, other in combinations((panel["gridPos"] for panel in everything), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in everything)


@by_dashboard
def test_every_panel_says_what_it_shows_in_a_unit_that_grafana_knows(path: Path) -> None:
    for panel in panels(path):
        assert panel["type"] in KINDS, panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["targets"], panel["title"]
    titles = Counter(panel["title"] for panel in panels(path))
    assert max(titles.values()) == 1


@by_dashboard
def test_everything_is_asked_of_the_data_source_that_was_chosen(path: Path) -> None:
    document = dashboard(path)
    variables = {variable["name"]: variable for variable in document["templating"]["list"]}
    assert list(variables) == ["datasource", "namespace", "pod"]
    asked: list[dict[str, Any]] = [variables["namespace"], variables["pod"]]
    for panel in panels(path):
        asked += [panel, *panel["targets"]]
    assert {one["datasource"]["uid"] for one in asked} == {"${datasource}"}


@by_dashboard
def test_a_dashboard_is_known_by_the_name_of_its_file(path: Path) -> None:
    assert dashboard(path)["uid"] == path.stem


def test_each_dashboard_is_in_a_config_map_that_grafana_finds() -> None:
    component = yaml.safe_load((COMPONENT / "kustomization.yaml").read_text("utf-8"))
    maps = component["configMapGenerator"]
    files = [name for one in maps for name in one["files"]]
    assert sorted(files) == [f"dashboards/{path.name}" for path in DASHBOARDS]
    assert component["generatorOptions"]["labels"]["grafana_dashboard"] == "1"


@pytest.mark.parametrize("script", ["generate_dashboards.py", "generate_prometheus_rule.py"])
def test_generated_files_are_in_sync(script: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
