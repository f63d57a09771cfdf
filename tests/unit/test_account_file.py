"""The sampler's account survives kill -9 at any moment, and an incarnation is never given out twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.accounts import AccountFile, next_incarnation, read_accounts
from headrace.errors import ConfigurationError
from headrace.types import SamplerIdentity

SAMPLER = SamplerIdentity("sampler-0", 0)


def begin(run_dir: Path) -> AccountFile:
    return AccountFile.create(run_dir, SamplerIdentity("sampler-0", next_incarnation(run_dir, "sampler-0")))


def test_what_is_written_is_read_while_the_writer_lives(tmp_path: Path) -> None:
    with begin(tmp_path) as account:
        account.update(produced=100, sealed=64, discarded={"non_finite": 3, "fault_hang": 1})
        account.sealed_through(1)
        account.settled(0, 32)
        (read,) = read_accounts(tmp_path)
    assert (read.produced, read.sealed, read.open) == (100, 64, 32)
    assert read.discarded == {"non_finite": 3, "fault_hang": 1}
    assert (read.last_sequence, read.settled_through, read.settled, read.state) == (1, 0, 32, "running")


def test_leaving_in_order_is_on_record(tmp_path: Path) -> None:
    with begin(tmp_path) as account:
        account.drained()
    assert read_accounts(tmp_path)[0].state == "drained"


def test_reasons_that_nobody_foresaw_are_counted_together(tmp_path: Path) -> None:
    with begin(tmp_path) as account:
        account.update(produced=9, sealed=0, discarded={"moonlight": 2, "gremlins": 3})
    assert read_accounts(tmp_path)[0].discarded == {"other": 5}


def test_a_torn_update_leaves_the_one_before(tmp_path: Path) -> None:
    with begin(tmp_path) as account:
        account.update(produced=1, sealed=0, discarded={})
        account.update(produced=2, sealed=0, discarded={})
    path = tmp_path / "accounts" / "sampler-0.0"
    whole = bytearray(path.read_bytes())
    newest = max((512, 1024), key=lambda offset: whole[offset])
    whole[newest + 8] ^= 0xFF
    path.write_bytes(whole)
    assert read_accounts(tmp_path)[0].produced == 1


def test_incarnations_count_up_and_are_each_given_out_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(lambda _: next_incarnation(tmp_path, "a.b/c"), range(40)))
    assert sorted(given) == list(range(40))
    assert next_incarnation(tmp_path, "another") == 0
    assert read_accounts(tmp_path)[0].sampler == SamplerIdentity("a.b/c", 0)


def test_without_a_folder_there_is_no_incarnation() -> None:
    with pytest.raises(ConfigurationError, match="run-dir"):
        next_incarnation(None, "sampler-0")


KILLED = """
import sys
from pathlib import Path
from headrace.accounts import AccountFile, next_incarnation
from headrace.types import SamplerIdentity
run = Path(sys.argv[1])
account = AccountFile.create(run, SamplerIdentity("sampler-0", next_incarnation(run, "sampler-0")))
count = 0
while True:
    count += 1
    account.update(produced=3 * count, sealed=2 * count, discarded={"other": count})
    if count == 1000:
        print("going", flush=True)
"""


def test_kill_9_in_the_midst_of_updates_leaves_a_whole_account(tmp_path: Path) -> None:
    for incarnation in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path.cwd()
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"going\n"
            for _ in range(200):  # a reader beside the writer sees whole accounts only
                read = read_accounts(tmp_path)[incarnation]
                assert read.open == 0
                assert read.produced >= 3000
            os.kill(writer.pid, signal.SIGKILL)
        read = read_accounts(tmp_path)[incarnation]
        assert (read.open, read.state) == (0, "running")
        assert read.produced == 3 * read.discarded["other"] >= 3000
