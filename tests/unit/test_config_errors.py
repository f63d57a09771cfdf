"""A wrong configuration is refused with every problem at once, each with its dotted path and a suggestion."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from headrace.config.load import config_from_document, load_config
from headrace.errors import ConfigurationError

GOOD: dict[str, Any] = {"run": {"stop": {"env_steps": 1000}}, "environment": {"id": "CartPole-v1"}}


def problems_of(changes: dict[str, Any]) -> tuple[str, ...]:
    """Problems of a good document after setting dotted keys in it."""
    document = copy.deepcopy(GOOD)
    for path, value in changes.items():
        place = document
        *sections, key = path.split(".")
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    try:
        config_from_document(document)
    except ConfigurationError as error:
        return error.problems
    return ()


def test_the_good_document_has_no_problem() -> None:
    assert problems_of({}) == ()


TWO = {"learner.count": 2, "sampler.count": 2}


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("smapler.count", 2, "smapler: unknown key. Did you mean `sampler`?"),
        ("sampler.cuont", 2, "sampler.cuont: unknown key. Did you mean `sampler.count`?"),
        ("sampler.lanes", 2, "sampler.lanes: unknown key. Did you mean `environment.lanes`?"),
        ("sampler.count", 0, "sampler.count: must be at least 1, not 0."),
        ("sampler.count", "two", "sampler.count: must be a whole number, not 'two'."),
        ("sampler.count", 1.5, "sampler.count: must be a whole number, not 1.5."),
        ("sampler.count", True, "sampler.count: must be a whole number, not 'true'."),
        ("run.stop.wall_s", True, "run.stop.wall_s: must be a number, not 'true'."),
        ("run.stop.env_steps", True, "run.stop.env_steps: must be a whole number, not 'true'."),
        ("sampler", 3, "sampler: must be a section (key: value lines), not 3."),
        ("environment.id", None, "environment.id: must be text, not empty."),
        ("environment.kwargs", [1], "environment.kwargs: must be a mapping (key: value), not [1]."),
        ("policy.hidden", "64", "policy.hidden: must be a list, such as [64, 64], not '64'."),
        ("policy.hidden", [64, 0], "policy.hidden.1: must be at least 1, not 0."),
        (
            "policy.activation",
            "tahn",
            "policy.activation: must be tanh or relu, not 'tahn'. Did you mean `tanh`?",
        ),
        ("metrics.tensorboard", "maybe", "metrics.tensorboard: must be true or false, not 'maybe'."),
        ("stream.high_watermark", 1.5, "stream.high_watermark: must be at most 1, not 1.5."),
        ("stream.message_bytes", 2**21, "stream.message_bytes: must be at most 1048576, not 2097152."),
        ("policy.initial_log_std", float("nan"), "policy.initial_log_std: must be a finite number, not nan."),
        (
            "algorithm.name",
            "pppo",
            "algorithm.name: must be ppo, appo, a2c, a3c, impala, dqn, ddpg, td3 or sac, not 'pppo'. "
            "Did you mean `ppo`?",
        ),
        (
            "algorithm",
            {"epochs": 3},
            "algorithm.name: must be set; choose ppo, appo, a2c, a3c, impala, dqn, ddpg, td3 or sac.",
        ),
        ("learner.count", 65, "learner.count: must be at most 64, not 65."),
    ],
)
def test_one_wrong_value_gives_one_sentence(path: str, value: Any, sentence: str) -> None:
    assert problems_of({path: value}) == (sentence,)


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"run.stop.env_steps": None}, "run.stop: needs at least one of"),
        ({"run.name": "a/b"}, "run.name: becomes part of a folder's name"),
        ({"environment.id": "  "}, "environment.id: must not be empty"),
        ({"environment.wrappers": ["nocolon"]}, "environment.wrappers.0: must be `module:callable`"),
        ({"environment.autoreset": "next_step"}, "environment.autoreset: only a native vector"),
        ({"policy.network": "mlpp"}, "policy.network: must be auto, mlp, cnn or `module:factory`"),
        (
            {"algorithm": {"name": "ppo", "batch_steps": 5000}},
            "algorithm.batch_steps: 5000 is no multiple of environment.lanes x sampler.fragment_length "
            "= 32 x 128 = 4096. Did you mean 4096?",
        ),
        (
            {"algorithm": {"name": "ppo", "minibatch_size": 8192}},
            "algorithm.minibatch_size: 8192 is more than a whole batch",
        ),
        (
            {
                "algorithm": {"name": "ppo", "learning_rate_schedule": "linear"},
                "run.stop.env_steps": None,
                "run.stop.wall_s": 5,
            },
            "algorithm.learning_rate_schedule: linear falls to zero at",
        ),
        (
            {"algorithm": {"name": "sac", "learning_rate_schedule": "linear"}, "run.stop": {"wall_s": 5}},
            "algorithm.learning_rate_schedule: linear falls to zero at",
        ),
        (
            {"algorithm": {"name": "dqn"}, "policy.normalize_observation": True},
            "policy.normalize_observation: not with dqn. The normalizer grows",
        ),
        (
            {"algorithm": {"name": "td3", "n_step": 9}, "sampler.fragment_length": 8},
            "algorithm.n_step: 9 steps reach past the next fragment; sampler.fragment_length is 8",
        ),
        (
            {"algorithm": {"name": "ddpg", "batch_size": 256}, "replay.min_size_to_sample": 255},
            "replay.min_size_to_sample: 255 transitions are fewer than one gradient step learns from",
        ),
        (
            {"algorithm": {"name": "dqn", "epsilon_initial": 0.1, "epsilon_final": 0.2}},
            "algorithm.epsilon_final: 0.2 is more than algorithm.epsilon_initial = 0.1",
        ),
        (
            {"sampler.leveling": "auto", "sync.lag_control": "drop"},
            "sampler.leveling: with sync.lag_control `drop` the learner waits for no sampler",
        ),
        (
            {"sampler.leveling": "auto", "algorithm": {"name": "dqn"}},
            "sampler.leveling: not with dqn, whose learner draws from replay",
        ),
        ({"stream.low_watermark": 0.8}, "stream.low_watermark: 0.8 must be below"),
        ({"stream.codec": "shared_memory", "network.host": "10.0.0.1"}, "stream.codec: shared_memory needs"),
        (
            {"network.paramserver_port": 7000, "network.learner_port": 7000},
            "network.learner_port: 7000 is the paramserver's port already",
        ),
        ({"network.metrics_port": 65535}, "network.metrics_port: 65535 leaves no ports"),
        (
            {"network.paramserver_port": 7001, "network.learner_port": 7000, **TWO},
            "network.learner_port: 7001 is the paramserver's port already",
        ),
        ({"learner.count": 2}, "learner.count: 2 learners need as many samplers at least"),
        ({"sync.exchange": "gradients"}, "sync.exchange: an update of ppo is many gradient steps"),
        (
            {"algorithm": {"name": "sac"}, "sync.exchange": "gradients"},
            "sync.exchange: an update of sac is many gradient steps",
        ),
        ({**TWO, "sync.quorum": 3}, "sync.quorum: 3 of 2 learners can never be"),
        (
            {**TWO, "sync": {"mode": "async", "quorum": 2, "max_policy_lag": 2}},
            "sync.quorum: a round of sync.mode `async` is of one",
        ),
        (
            {"sync": {"full_weight_lag": 5, "max_lag": 4}},
            "sync.full_weight_lag: 5 is more than sync.max_lag = 4",
        ),
        (
            {**TWO, "sync": {"mode": "async", "max_policy_lag": 1}},
            "sync.max_policy_lag: 1 is too little for sync.mode `async` and 2 learners",
        ),
        ({"sync.local_steps": "auto"}, "sync.local_steps: auto weighs learners that wait"),
        ({**TWO, "sync.group_size": 2}, "sync.group_size: 2 learners are no groups of 2"),
        (
            {**TWO, "sync": {"mode": "all_reduce", "local_steps": 8}},
            "sync.local_steps: 8 is about rounds; with sync.mode `all_reduce`",
        ),
        (
            {**TWO, "sync": {"mode": "all_reduce", "transport_dtype": "float16"}},
            "sync.transport_dtype: float16 is about rounds",
        ),
        (
            {
                "learner.count": 4,
                "sampler.count": 4,
                "algorithm": {"name": "a2c"},
                "sync": {"group_size": 2, "exchange": "gradients"},
            },
            "sync.exchange: learners of a group step by themselves",
        ),
        ({"sampler.count": 256}, "paramserver.max_watchers: 256 is too few: samplers and evaluator are 257"),
        (
            {"sampler.count": 8, "paramserver": {"relays": 2, "max_watchers": 4}},
            "paramserver.max_watchers: 4 is too few: with paramserver.relays = 2 up to 2 relays watch",
        ),
        (
            {"sampler.count": 6, "paramserver": {"relays": 6, "relay_fan_out": 2, "max_watchers": 3}},
            "paramserver.max_watchers: 3 is too few: with paramserver.relays = 6 up to 2 relays watch",
        ),
        (
            {"network.metrics_port": 65500, "sampler.count": 2, "paramserver.relays": 40},
            "network.metrics_port: 65500 leaves no ports",
        ),
        ({"sampler.count": 4, "sampler.max_count": 3}, "sampler.max_count: 3 is less than sampler.count = 4"),
        ({"restart.backoff_s": 20}, "restart.backoff_s: 20 is longer than"),
        ({"replay.selector": "fifo"}, "replay.selector: fifo draws the same items for ever"),
        ({"replay.selector": "lifo"}, "replay.selector: lifo draws the same items for ever"),
    ],
)
def test_a_rule_between_fields_is_one_sentence(changes: dict[str, Any], start: str) -> None:
    (problem,) = problems_of(changes)
    assert problem.startswith(start)


def test_what_only_learning_from_fragments_needs_is_not_asked_of_what_learns_from_replay() -> None:
    odd = {"environment.lanes": 3, "sampler.fragment_length": 7}
    assert problems_of(odd)[0].startswith("algorithm.batch_steps:")
    config_from_document(
        {
            **GOOD,
            "algorithm": {"name": "dqn"},
            "environment": {**GOOD["environment"], "lanes": 3},
            "sampler": {"fragment_length": 7},
        }
    )


def test_all_problems_come_at_once_rules_included() -> None:
    problems = problems_of(
        {"sampler.fragment_length": 0, "sync.lag_control": "pase", "stream.low_watermark": 0.9, "colour": 3}
    )
    assert [problem.split(":")[0] for problem in problems] == [
        "sampler.fragment_length",
        "sync.lag_control",
        "colour",
        "stream.low_watermark",
    ]


def test_a_rule_is_silent_about_a_field_that_is_wrong_itself() -> None:
    (problem,) = problems_of({"algorithm": {"name": "ppo", "batch_steps": 5000}, "environment.lanes": "many"})
    assert problem.startswith("environment.lanes:")


def test_settings_of_another_algorithm_are_named_as_such() -> None:
    with pytest.raises(ConfigurationError) as caught:
        config_from_document({**GOOD, "algorithm": {"name": "ppo", "epochs": 3}}, ["algorithm.name=a2c"])
    assert "algorithm.epochs: is a setting of ppo and appo, but `algorithm.name` is `a2c`" in str(
        caught.value
    )


def test_a_section_with_all_its_lines_commented_out_has_its_defaults() -> None:
    assert config_from_document({**GOOD, "stream": None}) == config_from_document(GOOD)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("- a\n- b\n", "must hold a mapping of sections, not a list"),
        ("run:\n  seed: 1\n  seed: 2\n", "line 3, column 3: the key `seed` is already set on line 2"),
        ("run: {seed: 1\n", "line 2, column 1"),
        ("run:\n\tseed: 1\n", "line 2, column 1: found character '\\t'"),
        ("run: !!python/object/apply:os.system [ls]\n", "could not determine a constructor"),
        ("a: &a\n  b: *a\n", "recursive"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_config(path)
    (problem,) = caught.value.problems
    assert problem.startswith(str(path))
    assert sentence in problem


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "cartpole-ppo.yaml").write_text("")
    with pytest.raises(ConfigurationError, match=r"no such file; did you mean .*cartpole-ppo\.yaml"):
        load_config(tmp_path / "cartpole-pop.yaml")


def test_a_folder_and_bytes_are_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is a folder"):
        load_config(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="not a UTF-8 text file"):
        load_config(tmp_path / "binary.yaml")
