"""What a partition has, worked out from Redis and the accounts, at whatever moment its process was killed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cold import ITEMS, SAMPLER, made

from headrace.cold_accounts import ColdAccounts, ColdCounts, read_cold_accounts
from headrace.errors import ChecksumError, CodecError
from headrace.types import PRIORITY, VALID, Fragment, SamplerIdentity
from services.replay.cache import FragmentCache
from services.replay.chunks import ChunkMeta, meta_of, pack_chunk, pack_meta, unpack_chunk, unpack_meta
from services.replay.recovery import recover


def entry(sequence: int, sampler: SamplerIdentity = SAMPLER) -> bytes:
    return pack_meta(ChunkMeta(sampler, sequence, 1, 1, ITEMS, 100, b"", b""))


def account(received: int, evicted: int = 0) -> dict[SamplerIdentity, ColdCounts]:
    """Of an incarnation of which so many fragments came in and the first ones were evicted."""
    counts = ColdCounts(
        received=received * ITEMS,
        standby=(received - evicted) * ITEMS,
        evicted=evicted * ITEMS,
        received_through=received - 1,
        evicted_through=evicted - 1,
    )
    return {SAMPLER: counts}


def test_all_is_there_after_an_orderly_end() -> None:
    found = recover([(number, entry(number)) for number in (2, 0, 1)], account(3))
    assert list(found.catalog.stored) == [0, 1, 2]
    assert found.catalog.total() == ColdCounts(received=3 * ITEMS, standby=3 * ITEMS)
    assert (found.garbage, found.redis_lost) == ([], 0)


def test_killed_between_storing_and_its_account_it_counts_as_received() -> None:
    found = recover([(number, entry(number)) for number in range(4)], account(3))
    assert found.catalog.total().received == 4 * ITEMS
    assert found.catalog.incarnations[SAMPLER].received_through == 3
    assert found.redis_lost == 0


def test_killed_between_evicting_and_deleting_it_is_deleted_and_counted_once() -> None:
    found = recover([(number, entry(number)) for number in range(4)], account(4, evicted=2))
    assert found.garbage == [0, 1]
    total = found.catalog.total()
    assert (total.received, total.evicted, total.standby) == (4 * ITEMS, 2 * ITEMS, 2 * ITEMS)
    assert total.balanced


def test_what_the_account_has_and_redis_has_not_is_lost() -> None:
    found = recover([(1, entry(1))], account(3))
    assert found.redis_lost == 2 * ITEMS
    assert found.catalog.total().balanced


def test_a_damaged_entry_is_deleted_and_its_chunk_lost() -> None:
    broken = entry(1)[:-1] + b"\xff"
    found = recover([(0, entry(0)), (1, broken)], account(2))
    assert found.garbage == [1]
    assert found.redis_lost == ITEMS


def test_without_an_account_redis_alone_is_believed() -> None:
    found = recover([(5, entry(7)), (6, entry(8))], {})
    assert found.catalog.total() == ColdCounts(received=2 * ITEMS, standby=2 * ITEMS)
    assert found.catalog.next_chunk == 7


def test_accounts_are_whole_after_their_writer_is_gone_and_go_on_with_the_next(tmp_path: Path) -> None:
    first = ColdAccounts(tmp_path, 3)
    first.write(SAMPLER, ColdCounts(received=5, standby=5))
    first.write(SAMPLER, ColdCounts(received=6, active=6))  # the file is never closed
    second = ColdAccounts(tmp_path, 3)
    assert second.read() == {SAMPLER: ColdCounts(received=6, active=6)}
    second.write(SAMPLER, ColdCounts(received=7, active=6, evicted=1))
    (row,) = read_cold_accounts(tmp_path)
    assert (row.partition, row.sampler, row.counts.received) == (3, SAMPLER, 7)
    first.close()
    second.close()


def sunk() -> Fragment:
    return made(1, seed=2)[1][0]


def test_a_chunk_comes_back_as_it_was_but_for_its_priorities() -> None:
    fragment = sunk()
    again = unpack_chunk(pack_chunk(fragment), 2**20)
    assert (again.id, again.policy_version, again.config_digest) == (
        fragment.id, fragment.policy_version, fragment.config_digest,
    )  # fmt: skip
    assert again.columns.keys() == fragment.columns.keys() - {PRIORITY}
    for name, column in again.columns.items():
        np.testing.assert_array_equal(column, fragment.columns[name])
        assert column.dtype == fragment.columns[name].dtype
        assert not column.flags.writeable


def test_whatever_bit_is_turned_a_chunk_is_refused() -> None:
    value = pack_chunk(sunk())
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(value), 300):
        bit = 1 << int(rng.integers(0, 8))
        with pytest.raises(CodecError):
            unpack_chunk(value[:place] + bytes([value[place] ^ bit]) + value[place + 1 :], 2**20)
    for length in (0, 3, 15, len(value) - 1):
        with pytest.raises(ChecksumError):
            unpack_chunk(value[:length], 2**20)


def test_a_chunk_larger_than_agreed_is_refused_before_it_is_unpacked() -> None:
    large = sunk()
    columns = {**large.columns, "observation": np.zeros((8, 2, 2**18), np.float32)}
    fragment = Fragment(large.id, large.policy_version, "digest", columns, ITEMS, ITEMS)
    with pytest.raises(CodecError, match="at most"):
        unpack_chunk(pack_chunk(fragment), 1000)


def test_an_index_entry_keeps_which_items_can_be_drawn() -> None:
    fragment = sunk()
    valid = np.ones((8, 2), np.bool_)
    valid[2:4, 1] = False
    fragment = Fragment(
        fragment.id, fragment.policy_version, "digest", {**fragment.columns, VALID: valid}, 14, 14
    )
    meta = unpack_meta(pack_meta(meta_of(fragment, 321, n_step=3)))
    assert (meta.sampler, meta.sequence, meta.nbytes, meta.num_transitions) == (SAMPLER, 0, 321, 14)
    drawable, pending = meta.masks(ITEMS)
    np.testing.assert_array_equal(drawable | pending, valid.reshape(-1))
    assert not (drawable & pending).any()
    assert set(np.flatnonzero(pending) // 2) <= {6, 7}


def test_the_cache_stays_within_its_bytes_and_keeps_what_was_used_last() -> None:
    cache = FragmentCache(100)
    fragment = sunk()
    for chunk in range(4):
        cache.put(chunk, fragment, 30)
        cache.take([0])
    assert set(cache.take(range(4))) == {0, 2, 3}
    cache.forget(2)
    cache.put(9, fragment, 101)
    assert cache.nbytes == 60
    assert set(cache.take(range(10))) == {0, 3}
