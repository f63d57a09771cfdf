"""Quarantine: provenance is kept, the disk is bounded, nothing in there can run code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from headrace.events import read_events
from headrace.quarantine import FOLDER, MAX_ARRAY_BYTES, QuarantineStore


def _samples(run_dir: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted((run_dir / FOLDER).glob("*.json"))]


def test_a_sample_is_kept_with_its_provenance_and_arrays(tmp_path: Path) -> None:
    store = QuarantineStore(tmp_path, "sampler-0", 10)
    provenance = {"seed": np.int64(7), "episode": 3, "step": 12, "reason": "a key of the caller's"}
    store.store("non_finite", "reward is nan", provenance, {"reward": np.array([1.0, np.nan])})
    (sample,) = _samples(tmp_path)
    assert sample["reason"] == "non_finite"
    assert sample["provenance"] == {"seed": 7, "episode": 3, "step": 12, "reason": "a key of the caller's"}
    with np.load(tmp_path / FOLDER / "sampler-0-0.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["reward"], [1.0, np.nan])
    (event,) = read_events(tmp_path)
    assert event["kind"] == "quarantine"


def test_no_more_than_the_maximum_is_kept_but_all_are_counted(tmp_path: Path) -> None:
    store = QuarantineStore(tmp_path, "sampler-0", 3)
    for _ in range(8):
        store.store("out_of_range", "too large", {}, {})
    assert store.counts == {"out_of_range": 8}
    assert len(_samples(tmp_path)) == 3


def test_a_restarted_process_shares_the_bound_of_its_earlier_lives(tmp_path: Path) -> None:
    for _ in range(3):
        store = QuarantineStore(tmp_path, "sampler-0", 4)
        for _ in range(3):
            store.store("wrong_shape", "it has three numbers", {}, {"observation": np.zeros(3)})
    QuarantineStore(tmp_path, "sampler-1", 4).store("wrong_shape", "another process", {}, {})
    assert len(list((tmp_path / FOLDER).glob("sampler-0-*.json"))) == 4
    assert len(_samples(tmp_path)) == 5


def test_what_would_need_pickle_is_kept_as_text(tmp_path: Path) -> None:
    store = QuarantineStore(tmp_path, "sampler-0", 10)
    store.store("wrong_dtype", "objects", {}, {"observation": np.array(["a", "b"], dtype=object)})
    (sample,) = _samples(tmp_path)
    assert sample["left_out"] == {"observation": "['a', 'b']"}
    assert list((tmp_path / FOLDER).glob("*.npz")) == []


def test_an_array_beyond_the_room_is_left_out_in_words(tmp_path: Path) -> None:
    store = QuarantineStore(tmp_path, "sampler-0", 10)
    huge = np.lib.stride_tricks.as_strided(np.zeros(1), (MAX_ARRAY_BYTES,), (0,))
    store.store("out_of_range", "huge", {}, {"observation": huge, "reward": np.zeros(1)})
    (sample,) = _samples(tmp_path)
    assert sample["left_out"] == {"observation": f"too large: {huge.nbytes} bytes"}


def test_without_a_folder_or_with_a_maximum_of_zero_it_only_counts(tmp_path: Path) -> None:
    for store in (QuarantineStore(None, "sampler-0", 10), QuarantineStore(tmp_path, "sampler-0", 0)):
        store.store("non_finite", "nan", {}, {"reward": np.zeros(1)})
        assert store.counts == {"non_finite": 1}
    assert _samples(tmp_path) == []
