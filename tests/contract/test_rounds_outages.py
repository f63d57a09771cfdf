"""Connections, answers and servers are lost in the middle of a round: what was brought counts once or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
from joining import FIRST, LAYOUT, PARAMETERS, START, Member, round_settings, together, values_of
from paramserving import PATIENCE_S, eventually, make_account, make_report

from headrace.errors import FencedError
from headrace.sync.contribution import Contributor, Work
from headrace.testing.proxy import Proxy
from headrace.types import PolicyVersion

WORK = Work(env_steps=64, samples_trained=64, episodes=1, returns=(5.0,))


def proxied(address: str) -> Proxy:
    host, port = address.rsplit(":", 1)
    return Proxy(host, int(port))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_a_learner_whose_answer_was_lost_learns_that_it_counts_and_it_counts_once(tmp_path: Path) -> None:
    with together(round_settings(tmp_path)) as run, proxied(run.address) as proxy:
        first, second = run.join(0, address=proxy.address), run.join(1)
        account = make_account("sampler-0", settled=2, trained=64)
        waiting = run.begin(first, first.contribution(START + 2, work=WORK, accounts=(account,)))
        proxy.pause()  # the contribution is there, its answer will not get through
        applied = second.bring(second.contribution(START, work=WORK))
        proxy.cut()
        proxy.resume()
        result = waiting.result(PATIENCE_S)
        assert (result.outcome, result.version) == ("applied", applied.version)
        assert "part of a version already" in result.detail
        assert result.values is not None
        np.testing.assert_array_equal(result.values, START + 1)
        newest = run.newest()
        assert newest.accounts == (account,)
        assert (newest.report.updates, newest.report.env_steps, newest.report.episodes) == (1, 128, 2)
        assert run.metric("gradients_total", outcome="applied") == 2


def test_after_a_lost_answer_the_next_contribution_goes_on_from_the_version(tmp_path: Path) -> None:
    with together(round_settings(tmp_path)) as run, proxied(run.address) as proxy:
        first, second = run.join(0, address=proxy.address), run.join(1)
        waiting = run.begin(first, first.contribution(START))
        proxy.pause()
        second.bring(second.contribution(START))
        proxy.cut()
        proxy.resume()
        waiting.result(PATIENCE_S)
        waiting = run.begin(first, first.contribution(START + 3))
        assert second.bring(second.contribution(START + 3)).version == PolicyVersion(1, 2)
        assert waiting.result(PATIENCE_S).outcome == "applied"


def test_a_contribution_that_was_lost_on_its_way_is_brought_again(tmp_path: Path) -> None:
    with together(round_settings(tmp_path)) as run, proxied(run.address) as proxy:
        first, second = run.join(0, address=proxy.address), run.join(1)
        waiting = run.begin(first, first.contribution(START + 2, work=WORK))
        proxy.cut()
        eventually(lambda: run.metric("learners") == 1, "the connection is lost")
        lost = run.metric("gradient_lag_count")
        proxy.resume()
        eventually(lambda: run.metric("gradient_lag_count") > lost, "it is brought again")
        second.bring(second.contribution(START, work=WORK))
        assert waiting.result(PATIENCE_S).outcome == "applied"
        assert run.newest().report.env_steps == 128
        np.testing.assert_array_equal(values_of(run.newest()), START + 1)


def test_a_contribution_that_the_round_closed_without_is_stale(tmp_path: Path) -> None:
    with together(round_settings(tmp_path)) as run, proxied(run.address) as proxy:
        first, second = run.join(0, address=proxy.address), run.join(1)
        waiting = run.begin(first, first.contribution(START + 2, work=WORK))
        proxy.cut()
        eventually(lambda: run.metric("learners") == 1, "the connection is lost")
        second.bring(second.contribution(START + 4))
        proxy.resume()
        result = waiting.result(PATIENCE_S)
        assert (result.outcome, result.version) == ("stale", PolicyVersion(1, 1))
        assert result.values is not None
        np.testing.assert_array_equal(result.values, START + 4)
        assert run.newest().report.env_steps == 0


def test_a_server_that_comes_back_takes_the_contribution_that_waited_for_it(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    settings = round_settings(tmp_path, learners=1)
    with together(settings) as run:
        address = run.address
    with closing(Member(settings, address, have=FIRST)) as member:
        waiting = pool.submit(member.bring, member.contribution(START + 1, work=WORK))
        with together(settings, address, publish=False) as run:
            result = waiting.result(PATIENCE_S)
            assert (result.outcome, result.version) == ("applied", PolicyVersion(2, 1))
            assert run.newest().report.env_steps == 64


def test_a_server_that_comes_back_still_knows_what_is_part_of_its_newest_version(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    settings = round_settings(tmp_path)
    with ExitStack() as outliving:
        with together(settings) as run:
            proxy = outliving.enter_context(proxied(run.address))
            first = outliving.enter_context(closing(Member(settings, proxy.address, incarnation=9)))
            first.join()
            second = run.join(1, incarnation=5)
            waiting = pool.submit(first.bring, first.contribution(START, work=WORK))
            eventually(lambda: run.metric("gradient_lag_count") == 1, "it is there")
            proxy.pause()
            second.bring(second.contribution(START))
        proxy.cut()
        with together(settings, run.address, publish=False) as restarted:
            newest = restarted.server.core.fetch()
            assert newest is not None
            contributors = {one.learner_id: one for one in newest.contributors}
            assert contributors == {
                "learner-0": Contributor("learner-0", 9, 1),
                "learner-1": Contributor("learner-1", 5, 1),
            }
            proxy.resume()
            result = waiting.result(PATIENCE_S)
            assert (result.outcome, result.version) == ("applied", PolicyVersion(1, 1))
            assert restarted.newest().report.env_steps == 64


def test_another_process_of_a_learner_is_not_taken_for_the_one_that_contributed(tmp_path: Path) -> None:
    settings = round_settings(tmp_path, learners=1)
    with together(settings) as run:
        before = run.join(0, incarnation=1)
        assert before.bring(before.contribution(START + 1)).applied_through == 1
        after = run.connect(0, incarnation=2)
        assert after.join().applied_through == -1
        assert after.bring(after.contribution(START + 2)).version == PolicyVersion(1, 2)


def test_what_was_computed_before_versions_that_the_server_still_has_is_stale_and_its_accounts_do_not_enter(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    settings = round_settings(tmp_path, learners=1, mode="async")
    with together(settings) as run:
        address = run.address
        fast = run.join(1)
        fast.bring(fast.contribution(START + 1))
    with closing(Member(settings, address, have=FIRST)) as slow:
        account = make_account("sampler-0", settled=4, trained=32)
        waiting = pool.submit(slow.bring, slow.contribution(START + 9, accounts=(account,)))
        with together(settings, address, publish=False) as run:
            result = waiting.result(PATIENCE_S)
            assert (result.outcome, result.version) == ("stale", PolicyVersion(1, 1))
            assert run.newest().accounts == ()
            np.testing.assert_array_equal(values_of(run.newest()), START + 1)


def forget_versions(folder: Path) -> None:
    """As if the versions since the first checkpoint had been too large for the journal."""
    for path in (folder / "paramserver").glob("newest-*"):
        path.unlink()


def test_versions_that_the_server_has_lost_come_from_the_learner_that_still_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = round_settings(tmp_path, learners=1)
    with together(settings) as run:
        assert run.server.core.wait_saved(PATIENCE_S)
        address = run.address
        monkeypatch.setattr(run.server.core._checkpointer, "request", lambda _record: None)  # it is killed
        member = run.join(0)
        for _ in range(3):
            held = member.bring(member.contribution(START + 1))
    forget_versions(tmp_path)
    with together(settings, address, publish=False) as run:
        returning = run.connect(0, have=held.version, incarnation=1)
        with pytest.raises(FencedError, match="publish the version you have first"):
            returning.bring(returning.contribution(START + 2))
        published = run.publisher.publish(
            held.version, parameters(START + 1), None, make_report(3), (), timeout_s=PATIENCE_S
        )
        assert published.version == PolicyVersion(2, 4)
        returning.client.hold(published.version)
        assert returning.join().version == published.version
        result = returning.bring(returning.contribution(START + 5))
        assert (result.outcome, result.version) == ("applied", PolicyVersion(2, 5))


def parameters(values: np.ndarray) -> dict[str, np.ndarray]:
    return {**PARAMETERS, **LAYOUT.split(values)}


def test_what_was_said_of_a_version_that_the_learner_no_longer_holds_is_no_news(tmp_path: Path) -> None:
    with together(round_settings(tmp_path, learners=1)) as run:
        client = run.join(0).client
        client.close()
        client._first()  # a hello with the version it had
        client.hold(PolicyVersion(2, 4))
        client._gives_up(FencedError("publish the version you have first"))
        assert client._fenced is None
        client._first()
        client._gives_up(FencedError("publish the version you have first"))
        assert client._fenced is not None


class FailingWrites:
    """The file of issued numbers on a disk that is full until :meth:`heal`."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._full = True
        self.failed = 0

    def __call__(self, *arguments: object) -> None:
        if self._full:
            self.failed += 1
            raise OSError("no space left on device")
        self._write(*arguments)

    def heal(self) -> None:
        self._full = False


def test_a_round_whose_version_has_no_number_yet_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with together(round_settings(tmp_path, learners=1)) as run:
        member = run.join(0)
        disk = FailingWrites(run.server.core._issued.write)
        monkeypatch.setattr(run.server.core._issued, "write", disk)
        waiting = run.begin(member, member.contribution(START + 1, work=WORK))
        eventually(lambda: disk.failed >= 1, "the number can't be written")
        assert run.server.core.status().version == FIRST
        disk.heal()
        assert waiting.result(PATIENCE_S).version == PolicyVersion(1, 1)
        assert run.newest().report.env_steps == 64


def test_who_comes_between_a_round_and_its_version_is_let_in_once_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with together(round_settings(tmp_path, learners=1)) as run:
        member = run.join(0)
        disk = FailingWrites(run.server.core._issued.write)
        monkeypatch.setattr(run.server.core._issued, "write", disk)
        run.begin(member, member.contribution(START + 1, work=WORK))
        member.client.close()
        heard: list[str] = []
        again = run.connect(0, on_event=lambda _kind, sentence: heard.append(sentence))
        eventually(lambda: any("its number can't be written" in one for one in heard), "it is told to wait")
        disk.heal()
        welcome = again.join()
        assert (welcome.version, welcome.applied_through) == (PolicyVersion(1, 1), 1)
        assert welcome.values is not None
        np.testing.assert_array_equal(welcome.values, START + 1)
        assert again.bring(again.contribution(START, base=FIRST)).outcome == "applied"
        assert (run.newest().report.env_steps, run.newest().report.updates) == (64, 1)
