"""``headrace ledger`` and ``trace`` on folders of runs that are over."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from headrace import trail
from headrace.accounts import AccountFile, next_incarnation
from headrace.checkpoint import Blob, CheckpointDirectory, Journal, VersionRecord
from headrace.cli.main import app
from headrace.config.digest import config_digest, config_json
from headrace.config.sections import Config
from headrace.errors import ConfigurationError, HeadraceError
from headrace.local.run_folder import RunFolder, create
from headrace.quarantine import QuarantineStore
from headrace.types import (
    Fragment,
    FragmentId,
    LearnerAccount,
    PolicyVersion,
    SamplerIdentity,
    TrainingReport,
)

CONFIG = Config.model_validate({"environment": {"id": "CartPole-v1"}, "run": {"stop": {"updates": 1}}})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose sampler made 100 transitions (8 discarded, 80 sealed) and was killed."""
    create(RunFolder(tmp_path), CONFIG, datetime(2026, 1, 1))
    identity = SamplerIdentity("sampler-0", next_incarnation(tmp_path, "sampler-0"))
    with AccountFile.create(tmp_path, identity) as account:
        account.update(produced=100, sealed=80, discarded={"non_finite": 8})
        account.sealed_through(9)
    return tmp_path


def _record(trained: int, dropped: int, number: int = 3) -> VersionRecord:
    account = LearnerAccount(SamplerIdentity("sampler-0", 0), 9, trained, {"stale": dropped})
    return VersionRecord(
        version=PolicyVersion(1, number),
        run_id="run",
        config_digest=config_digest(CONFIG),
        config_json=config_json(CONFIG),
        report=TrainingReport(trained, 3, trained, 0, None, None, {}),
        accounts=(account,),
        acting=Blob.encode({"network/bias": np.zeros(1, np.float32)}),
    )


def _checkpoint(run: Path, trained: int, dropped: int) -> None:
    CheckpointDirectory(run).save(_record(trained, dropped))


def test_the_ledger_of_a_killed_run_knows_what_was_trained_since_its_last_checkpoint(run: Path) -> None:
    _checkpoint(run, trained=40, dropped=0)
    Journal(run).write(_record(trained=70, dropped=10, number=9))
    ledger = json.loads(CliRunner().invoke(app, ["ledger", str(run), "--json"]).stdout)
    assert (ledger["trained"], ledger["lost"]) == (70, {"sampler_killed": 12})


def test_a_balanced_ledger_is_exit_code_0_with_every_count(run: Path) -> None:
    _checkpoint(run, trained=70, dropped=10)
    result = CliRunner().invoke(app, ["ledger", str(run), "--json"])
    assert result.exit_code == 0
    ledger = json.loads(result.stdout)
    assert ledger["produced"] == 100
    assert ledger["trained"] == 70
    assert ledger["dropped"] == {"non_finite": 8, "stale": 10}
    assert ledger["lost"] == {"sampler_killed": 12}
    assert ledger["in_flight"] == 0
    assert ledger["balanced"] is True


def test_the_table_has_a_row_for_each_incarnation(run: Path) -> None:
    next_incarnation(run, "sampler-0")
    result = CliRunner().invoke(app, ["ledger", str(run)])
    assert result.exit_code == 0
    assert "sampler-0/0" in result.stdout
    assert "sampler-0/1" in result.stdout
    assert result.stdout.splitlines()[-1] == "balanced"


def test_something_counted_twice_is_exit_code_3(run: Path) -> None:
    _checkpoint(run, trained=90, dropped=0)
    result = CliRunner().invoke(app, ["ledger", str(run)])
    assert result.exit_code == 3
    assert "does not add up: sampler-0/0: 90 transitions settled of 80 sealed" in result.stdout
    assert result.stdout.splitlines()[-1] == "NOT BALANCED"


def test_trace_says_where_a_fragment_came_from_and_what_became_of_it(run: Path) -> None:
    fragment = Fragment(
        id=FragmentId(SamplerIdentity("sampler-0", 0), 4),
        policy_version=PolicyVersion(1, 1),
        config_digest="0123456789abcdef",
        columns={
            "reward": np.zeros((5, 1), np.float32),
            "lane_seed": np.array([77]),
            "lane_episode": np.array([2]),
            "lane_step": np.array([30]),
        },
        num_transitions=5,
        produced_through=25,
    )
    trail.FragmentTrail(run).append(fragment, trained_into=PolicyVersion(1, 3), lag=1)
    QuarantineStore(run, "learner-0", 5).store("stale", "too old", {"fragment": "sampler-0/0/4"}, {})
    result = CliRunner().invoke(app, ["trace", str(run), "sampler-0/0/4"])
    assert result.exit_code == 0
    for words in (
        "sampler-0/0/4",
        "CartPole-v1",
        "policy version 1.1",
        "0123456789abcdef",
        "trained into version 1.3, policy lag 1",
        "seed 77, from episode 2 step 30, 5 steps",
        "learner-0-0.json: stale: too old",
    ):
        assert words in result.stdout


def test_an_unknown_fragment_and_a_malformed_id_are_said_in_words(run: Path) -> None:
    unknown = CliRunner().invoke(app, ["trace", str(run), "sampler-0/0/999"])
    assert isinstance(unknown.exception, HeadraceError)
    assert "sampler-0/0/999 isn't in the trail" in str(unknown.exception)
    malformed = CliRunner().invoke(app, ["trace", str(run), "nonsense"])
    assert isinstance(malformed.exception, ConfigurationError)


def test_top_of_a_run_that_is_over_shows_how_it_ended(run: Path) -> None:
    (run / "summary.json").write_text('{"status": "failed", "reason": "no more disk"}')
    result = CliRunner().invoke(app, ["top", str(run)])
    assert result.exit_code == 0
    assert "failed (no more disk)" in result.stdout
