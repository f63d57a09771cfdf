"""Numbers are read as people write them, and ``key=value`` sets any key of the document."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config.document import parse_yaml
from headrace.config.load import config_from_document
from headrace.config.overrides import apply_overrides, parse_override
from headrace.errors import ConfigurationError

GOOD: dict[str, Any] = {"run": {"stop": {"env_steps": 1000}}, "environment": {"id": "CartPole-v1"}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("+.5", 0.5),
        ("1.", 1.0),
        ("-3", -3),
        ("1_000_000", 1_000_000),
        ("010", 10),
        ("0x1f", 31),
        (".inf", float("inf")),
        ("true", True),
        ("no", "no"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("v1", "v1"),
        ("1e", "1e"),
        ("'1e-4'", "1e-4"),
        ("", None),
        ("~", None),
        ("[32, 32]", [32, 32]),
        ("{a: 1e-3}", {"a": 1e-3}),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    parsed = parse_yaml(text, "test")
    assert parsed == value
    assert type(parsed) is type(value)


def test_overrides_set_dotted_keys_and_the_later_one_wins() -> None:
    config = config_from_document(
        GOOD,
        [
            "run.stop.return=475",
            "algorithm={name: ppo}",
            "algorithm.learning_rate=1e-4",
            "policy.hidden=[32,16]",
            "environment.kwargs.sutton_barto_reward=true",
            "run.seed=2",
            "run.seed=3",
        ],
    )
    assert config.run.stop.return_ == 475.0
    assert config.algorithm.learning_rate == 1e-4
    assert config.policy.hidden == [32, 16]
    assert config.environment.kwargs == {"sutton_barto_reward": True}
    assert config.run.seed == 3


def test_a_mapping_replaces_its_section() -> None:
    document = {**GOOD, "algorithm": {"name": "ppo", "epochs": 9}}
    assert config_from_document(document, ["algorithm={name: a2c}"]).algorithm.name == "a2c"


def test_an_empty_value_is_none() -> None:
    config = config_from_document(GOOD, ["run.stop.env_steps=", "run.stop.updates=5"])
    assert config.run.stop.env_steps is None


def test_the_given_document_is_left_alone() -> None:
    document: dict[str, Any] = {"run": {"seed": 1}}
    apply_overrides(document, ["run.seed=2"])
    assert document == {"run": {"seed": 1}}


def test_a_value_may_hold_an_equals_sign() -> None:
    assert parse_override("run.name=a=b") == (("run", "name"), "a=b")


def test_all_override_problems_come_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        config_from_document(GOOD, ["seed", "=3", "run.seeed=3", "environment.id.x=3", "run.seed=[1"])
    problems = caught.value.problems
    assert problems[0].startswith("override `seed`: expected key=value")
    assert problems[1].startswith("override `=3`: expected key=value")
    assert problems[2] == "environment.id: is a value, not a section, so `environment.id.x` can't be set"
    assert problems[3].startswith("override `run.seed=[1`, line 1")
    assert problems[4] == "run.seeed: unknown key. Did you mean `run.seed`?"
