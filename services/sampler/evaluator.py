"""The evaluator: a sampler that acts without learning, and tells the paramserver how good a version is."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.clients.run import RunClient
from headrace.config.sections import EvaluationConfig
from headrace.envs.lanes import Lanes
from headrace.evaluation import evaluate
from headrace.nets.actor import Actor
from headrace.types import Array, Evaluation, PolicyVersion, Snapshot
from services.sampler.acting import SnapshotSource
from services.sampler.metrics import EvaluatorMetrics

_POLL_S = 0.2
_LONG_S = 60.0
_MAX_DUTY = 0.5  # share of the time an evaluator may compute, so that it doesn't starve the training


class Evaluator:
    """Evaluates the newest version again and again, and the last one once the run has ended."""

    def __init__(
        self,
        *,
        config: EvaluationConfig,
        make_lanes: Callable[[], Lanes],
        actor: Actor,
        choose: Callable[[dict[str, Array]], dict[str, Array]],
        snapshots: SnapshotSource,
        run: RunClient,
        metrics: EvaluatorMetrics,
        ended: Callable[[], bool],
        stopping: Callable[[], bool],
        on_event: Callable[[str, str], None] = lambda _kind, _sentence: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``ended``: training is over, evaluate once more; ``stopping``: leave what you are doing."""
        self._config = config
        self._make_lanes = make_lanes
        self._actor = actor
        self._choose = choose
        self._snapshots = snapshots
        self._run = run
        self._metrics = metrics
        self._ended = ended
        self._stopping = stopping
        self._on_event = on_event
        self._warned = False
        self._clock = clock
        self._last: PolicyVersion | None = None

    def run(self) -> None:
        """Work until the run has ended and its last version is evaluated, or until told to stop."""
        not_before = 0.0
        while not self._stopping():
            if self._snapshots.fatal is not None:
                raise self._snapshots.fatal
            snapshot = self._snapshots.wait_newer(self._last, _POLL_S)
            ended = self._ended()
            if snapshot is None:
                if ended:
                    return
                continue
            if snapshot.version.number == 0:
                # Nothing is learned yet. The mode of what a seed has drawn may solve an easy task by luck.
                self._last = snapshot.version
                continue
            if not ended and self._clock() < not_before:
                time.sleep(_POLL_S / 4)
                continue
            began = self._clock()
            self._evaluate(snapshot)
            took = self._clock() - began
            self._metrics.seconds.observe(took)
            pause = max(self._config.interval_s, took * (1 - _MAX_DUTY) / _MAX_DUTY)
            not_before = self._clock() + pause

    def _evaluate(self, snapshot: Snapshot) -> None:
        if not self._run.begin_evaluation(snapshot.version):
            return  # superseded before it could be kept; a newer one is on its way
        self._actor.load(snapshot.parameters)
        lanes = self._make_lanes()
        try:
            result = evaluate(
                lanes, self._choose, episodes=self._config.episodes, stop=self._stop_or_warn(self._clock())
            )
        finally:
            lanes.close()
        if result is None:
            return
        self._last = snapshot.version
        self._metrics.evaluations.inc()
        self._metrics.episode_return.set(result.mean)
        self._metrics.policy_version.set(snapshot.version.number)
        self._run.report_evaluation(
            Evaluation(snapshot.version, result.mean, result.std, len(result.returns))
        )

    def _stop_or_warn(self, began: float) -> Callable[[], bool]:
        """Whether to stop, asked at every step; says once if an evaluation begun at ``began`` takes long."""

        def stop() -> bool:
            if not self._warned and self._clock() - began > _LONG_S:
                self._warned = True
                self._on_event(
                    "evaluation_slow",
                    f"an evaluation of {self._config.episodes} episodes takes more than {_LONG_S:.0f} s; if "
                    "episodes have no end, set environment.max_episode_steps, else fewer evaluation.episodes",
                )
            return self._stopping()

        return stop
