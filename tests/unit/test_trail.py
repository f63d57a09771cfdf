"""The fragment trail: found again by its id, bounded on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headrace import trail
from headrace.types import Fragment, FragmentId, PolicyVersion, SamplerIdentity


def _fragment(sequence: int) -> Fragment:
    return Fragment(
        id=FragmentId(SamplerIdentity("sampler-0", 2), sequence),
        policy_version=PolicyVersion(1, 5),
        config_digest="abc",
        columns={
            "reward": np.zeros((4, 2), np.float32),
            "lane_seed": np.array([11, 12]),
            "lane_episode": np.array([3, 4]),
            "lane_step": np.array([7, 8], np.int32),
        },
        num_transitions=8,
        produced_through=8 * (sequence + 1),
    )


def test_an_appended_fragment_is_found_at_once(tmp_path: Path) -> None:
    log = trail.FragmentTrail(tmp_path)
    log.append(_fragment(0), trained_into=PolicyVersion(1, 6), lag=1)
    log.append(_fragment(1), dropped="stale")
    found = trail.find(tmp_path, _fragment(0).id)
    assert found is not None
    assert (found["trained_into"], found["lag"], found["policy_version"]) == ("1.6", 1, "1.5")
    assert (found["lane_seed"], found["lane_episode"], found["lane_step"]) == ([11, 12], [3, 4], [7, 8])
    dropped = trail.find(tmp_path, _fragment(1).id)
    assert dropped is not None
    assert dropped["dropped"] == "stale"
    assert dropped["trained_into"] is None


def test_an_id_that_begins_like_another_is_not_taken_for_it(tmp_path: Path) -> None:
    trail.FragmentTrail(tmp_path).append(_fragment(12), dropped="stale")
    assert trail.find(tmp_path, _fragment(1).id) is None


def test_the_file_is_rotated_and_the_newest_stay(tmp_path: Path) -> None:
    log = trail.FragmentTrail(tmp_path, max_bytes=2000)
    for sequence in range(200):
        log.append(_fragment(sequence), trained_into=PolicyVersion(1, 6), lag=0)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3 * 2000
    assert trail.find(tmp_path, _fragment(199).id) is not None
    assert trail.find(tmp_path, _fragment(0).id) is None


def test_an_unwritable_folder_costs_the_trail_only(tmp_path: Path) -> None:
    log = trail.FragmentTrail(tmp_path / "gone")
    log.append(_fragment(0), dropped="stale")
    log.append(_fragment(1), dropped="stale")
    log.close()
    assert trail.find(tmp_path, _fragment(0).id) is None
