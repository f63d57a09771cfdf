"""A whole run with mutual TLS and a token: nothing gets in from outside, and nothing is lost inside."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from live_run import LiveRun
from local_run import command, finish, small_document

from headrace.clients.run import RunClient
from headrace.config.load import load_config
from headrace.errors import HeadraceError
from headrace.local.run_folder import RunFolder
from headrace.local.security import credentials_of
from headrace.rpc.handshake import Handshake

SECURED = {"tls": "mutual", "token": "required"}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_secured_run_finishes_with_a_balanced_ledger(tmp_path: Path, algorithm: str) -> None:
    with LiveRun(tmp_path, _document(algorithm)) as run:
        run.wait_until(lambda: run.record("paramserver-0") is not None, "a paramserver")
        record = run.record("paramserver-0")
        assert record is not None
        stranger = RunClient(record.address, Handshake("", ""))
        with pytest.raises(HeadraceError):
            stranger.state(timeout_s=10.0)
        stranger.close()
        folder = RunFolder(run.folder)
        known = RunClient(
            record.address, Handshake("", ""), credentials=credentials_of(load_config(folder.config), folder)
        )
        assert known.state(timeout_s=10.0).status.phase in ("starting", "running", "finished")
        known.close()
        done = run.finish()
    assert done.exit_code == 0, done.output
    assert done.summary["status"] == "finished"
    assert done.summary["ledger"]["balanced"]
    assert done.summary["ledger"]["produced"] > 0
    private = (run.folder / "security").rglob("*")
    assert {stat.S_IMODE(path.stat().st_mode) for path in private if path.is_file()} == {0o600}
    assert stat.S_IMODE((run.folder / "security").stat().st_mode) == 0o700
    ledger = finish(command("ledger", str(run.folder)), run.folder)
    assert ledger.exit_code == 0, ledger.output


def _document(algorithm: str) -> dict[str, Any]:
    """On policy with a relay between, and off policy with both tiers: every connection there is."""
    made = small_document(security=SECURED, sampler={"count": 2})
    if algorithm == "ppo":
        made["paramserver"] = {"relays": 1}
        made["run"]["stop"] = {"updates": 100}
        return made
    made["run"]["stop"] = {"env_steps": 5000}
    made["algorithm"] = {"name": "dqn", "batch_size": 32, "gradient_steps": 8, "n_step": 3}
    made["replay"] = {
        "hot_capacity_bytes": 2**16,
        "samples_per_insert": 4,
        "min_size_to_sample": 300,
        "cold": "required",
    }
    return made
