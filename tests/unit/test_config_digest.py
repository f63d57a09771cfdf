"""The digest names a configuration: equal for equal documents, different for any change, stable over time."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.config.digest import config_digest, config_json, differing_keys
from headrace.config.load import config_from_document, dump_yaml, load_config
from headrace.config.sections import Config

GOLDEN = Path(__file__).parent.parent / "golden" / "config.json"


def make(*overrides: str) -> Config:
    return config_from_document(
        {"run": {"stop": {"env_steps": 1000}}, "environment": {"id": "CartPole-v1"}}, overrides
    )


def test_the_digest_of_a_written_document_is_stable() -> None:
    # A resolved document of this version: it must load as it is, and to the same digest, from now on. A new
    # field changes the digest of every configuration; then add it here, with its default, and the new digest,
    # and say so in the changelog.
    golden = json.loads(GOLDEN.read_text())
    config = config_from_document(golden["document"])
    assert json.loads(config_json(config)) == golden["document"]
    assert config_digest(config) == golden["digest"]


def test_spelling_does_not_matter(tmp_path: Path) -> None:
    plain, fancy = tmp_path / "plain.yaml", tmp_path / "fancy.yaml"
    plain.write_text(
        "environment: {id: CartPole-v1, lanes: 8}\nrun: {stop: {env_steps: 100000, return: 475}}\n"
    )
    fancy.write_text(
        "# comment\nrun:\n  stop:\n    return: 475.0\n    env_steps: 1e5\nenvironment:\n  lanes: 8\n"
        "  id: 'CartPole-v1'\nsampler: {count: 1}  # a default, spelled out\n"
    )
    assert config_digest(load_config(plain)) == config_digest(load_config(fancy))


def test_any_change_changes_it() -> None:
    changes = ("run.seed=2", "algorithm={name: a2c}", "environment.kwargs.a=1", "stream.codec=json")
    digests = {config_digest(make(change)) for change in changes}
    assert len({config_digest(make()), *digests}) == len(changes) + 1


def test_a_dumped_document_loads_to_an_equal_configuration(tmp_path: Path) -> None:
    config = make(
        "algorithm={name: ppo, learning_rate: 1e-5}", "run.name=no", "environment.kwargs={a: '1e3', b: [1]}"
    )
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(config))
    assert load_config(path) == config
    assert path.read_text().startswith(f"# config_digest: {config_digest(config)}\n")


def test_differing_keys_names_changed_and_one_sided_keys() -> None:
    a = make("environment.kwargs={x: 1}")
    b = make("run.seed=2", "algorithm={name: a2c}", "environment.kwargs={y: {z: 1}}")
    keys = differing_keys(config_json(a), config_json(b))
    assert keys == sorted(keys)
    assert {"run.seed", "algorithm.name", "algorithm.epochs", "environment.kwargs.x"} <= set(keys)
    assert "environment.kwargs.y.z" in keys
    assert "run.stop.env_steps" not in keys
    assert differing_keys(config_json(a), config_json(a)) == []
