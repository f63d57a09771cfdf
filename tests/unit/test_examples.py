"""What the examples say works: their configurations load and their environments can be learned in."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config.checks import check_with_spaces
from headrace.config.load import load_config
from headrace.envs.factory import make_environment, probe

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DOCUMENTS = sorted(EXAMPLES.glob("*/*.yaml"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_an_example_can_be_probed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(path.parent))
    config = load_config(path)
    check_with_spaces(config, probe(config.environment))


def test_the_thermostat_keeps_gymnasiums_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    from gymnasium.utils.env_checker import check_env

    path = EXAMPLES / "own_environment"
    monkeypatch.syspath_prepend(str(path))
    check_env(make_environment(load_config(path / "thermostat-ppo.yaml").environment), skip_render_check=True)
