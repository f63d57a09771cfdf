"""The directory that lives in this process: many streams, one lock, one journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from headrace.config.choices import off_policy
from headrace.config.sections import Config
from headrace.errors import UnavailableError
from headrace.logs import get_logger
from headrace.replay.directory import Directory
from headrace.replay.limiter import FRAGMENTS_AHEAD, Limits
from headrace.replay.members import DirectoryGlance, Followed, ShardGrant, ShardIdentity, ShardReport
from headrace.rpc.merging import Newest
from services.replay.journal import Journal
from services.replay.metrics import ReplayMetrics

_TICK_S = 0.25
_DRAINING = "the directory of replay is draining"


def limits_of(config: Config) -> Limits:
    """The limiter's settings in a run: what its samplers insert and its learner draws at once."""
    algorithm, replay = off_policy(config), config.replay
    fragment = config.environment.lanes * config.sampler.fragment_length
    return Limits(
        samples_per_insert=replay.samples_per_insert,
        min_size_to_sample=replay.min_size_to_sample,
        tolerance_share=replay.samples_per_insert_tolerance,
        largest_insert=FRAGMENTS_AHEAD * fragment * (config.sampler.max_count or config.sampler.count),
        largest_draw=algorithm.batch_size * algorithm.gradient_steps,
    )


class DirectoryCore:
    """Thread-safe directory. What changes is said to all whom it concerns before a call returns.

    ``_lock`` guards the directory and the streams' mailboxes; ``_saving`` the journal, so that a slow disk
    holds nobody up. A thread of its own lets go of who is silent, and saves.
    """

    def __init__(
        self,
        config: Config,
        *,
        run_dir: Path | None,
        run_id: str,
        metrics: ReplayMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._failing = False
        self._metrics = metrics
        self._journal = Journal(run_dir, run_id, clock=clock)
        self._directory = Directory(
            limits_of(config),
            outage_s=config.replay.outage_s,
            rebalance_drift=config.replay.rebalance_drift,
            clock=clock,
            before=self._journal.load(),
        )
        self._shards: dict[int, Newest[ShardGrant]] = {}
        self._learners: dict[int, tuple[int, Newest[Followed]]] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="directory", daemon=True)
        self._thread.start()

    def join(self, shard: ShardIdentity, mailbox: Newest[ShardGrant]) -> int:
        """A shard's stream begins; returns its token. Raises what :meth:`Directory.join` raises."""
        with self._lock:
            self._refuse_when_closed()
            token = self._directory.join(shard)
            self._shards[token] = mailbox
            return token

    def report(self, token: int, report: ShardReport) -> None:
        """State of a shard. Raises what :meth:`Directory.report` raises."""
        with self._lock:
            self._directory.report(token, report)
            self._speak()

    def leave(self, token: int) -> None:
        """A shard leaves in order."""
        with self._lock:
            self._directory.leave(token)
            self._speak()

    def shard_gone(self, token: int) -> None:
        """A shard's stream has ended."""
        with self._lock:
            del self._shards[token]
            self._directory.broken(token)

    def follow(self, learner_id: str, incarnation: int, mailbox: Newest[Followed]) -> int:
        """A learner's stream begins; returns its token. Raises what :meth:`Directory.follow` raises."""
        with self._lock:
            self._refuse_when_closed()
            token, number = self._directory.follow(learner_id, incarnation)
            self._learners[token] = (number, mailbox)
            mailbox.put(Followed(number))
            self._speak()
        if number != incarnation:
            self._save()  # a number is given out once
        return token

    def learner_reports(self, token: int, drawn: int, newest_version: int) -> None:
        """What a learner's process has drawn and published."""
        with self._lock:
            self._directory.learner_reports(token, drawn, newest_version)
            self._speak()

    def learner_gone(self, token: int) -> None:
        """A learner's stream has ended."""
        with self._lock:
            del self._learners[token]
            self._directory.unfollow(token)

    def glance(self) -> DirectoryGlance:
        """Everything at a glance."""
        with self._lock:
            return self._directory.glance()

    def close(self) -> None:
        """End all streams, save. Idempotent."""
        self._closed.set()
        with self._lock:
            for shard in self._shards.values():
                shard.fail(UnavailableError(_DRAINING))
            for _, learner in self._learners.values():
                learner.fail(UnavailableError(_DRAINING))
        self._save()
        self._thread.join()

    def _refuse_when_closed(self) -> None:
        if self._closed.is_set():
            raise UnavailableError(_DRAINING)

    def _speak(self) -> None:
        """Tell everyone what is new for them. A stream that has just ended hears nothing."""
        for token, grant in self._directory.grants():
            if token in self._shards:
                self._shards[token].put(grant)
        for token, view in self._directory.views():
            if token in self._learners:
                number, mailbox = self._learners[token]
                mailbox.put(Followed(number, view))

    def _tick(self) -> None:
        while not self._closed.wait(_TICK_S):
            with self._lock:
                self._directory.on_time()
                self._speak()
                self._metrics.observe_directory(
                    drift=self._directory.drift,
                    members=self._directory.num_members,
                    limited_s=self._directory.limited_s,
                )

            if self._journal.due:
                self._save()

    def _save(self) -> None:
        with self._saving:
            with self._lock:
                totals = self._directory.save()
            try:
                self._journal.save(totals)
            except OSError as error:
                if not self._failing:  # once an outage, not once a second
                    get_logger().warning(f"the directory's totals can't be saved, trying again: {error}")
                self._failing = True
            else:
                self._failing = False
