"""One partition of the cold tier, put together: store, shard, sink, and what serves them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np

from headrace.cold_accounts import ColdAccounts
from headrace.envs.validation import FragmentCheck
from headrace.events import OnEvent, no_event
from headrace.flow.watermarks import Watermarks
from headrace.rpc.backoff import Backoff
from headrace.rpc.fragments import SERVICE as SINK_SERVICE
from headrace.rpc.fragments import TrajectoryServicer
from headrace.rpc.handshake import Handshake
from headrace.rpc.replay_shard import SERVICE as SHARD_SERVICE
from headrace.rpc.replay_shard import ReplayShardServicer
from headrace.types import Fragment
from services.replay.cold_shard import ColdShard
from services.replay.config import ColdSettings
from services.replay.metrics import ReplayMetrics
from services.replay.reader import CACHE_BYTES
from services.replay.sink import Sink
from services.replay.store import TIMEOUT_S, ChunkStore, StoreError

SERVICE_NAMES = (SINK_SERVICE, SHARD_SERVICE)
_BACKOFF_S = (0.1, 1.0)


class ColdTier:
    """Serves at once; takes in and gives out once Redis has been read. ``stop`` leaves all in Redis."""

    def __init__(
        self,
        settings: ColdSettings,
        handshake: Handshake,
        *,
        on_event: OnEvent = no_event,
        check: Callable[[Fragment], tuple[str, str] | None] | None = None,
        timeout_s: float = TIMEOUT_S,
        grace_s: float | None = None,
        cache_bytes: int = CACHE_BYTES,
        rng: np.random.Generator | None = None,
    ) -> None:
        """``check`` None: as fragments of this environment must be. ``grace_s`` None: ``replay.outage_s``."""
        config, terms = settings.config, settings.terms
        rng = rng or np.random.default_rng()
        self._settings = settings
        self._on_event = on_event
        self._check = check or FragmentCheck(settings.spec, config.validation, stored=True)
        self._backoff = Backoff(*_BACKOFF_S, rng)
        self._closed = threading.Event()
        self.ready = threading.Event()
        """Set once Redis has been read and the sink takes in."""
        self.store = ChunkStore(
            settings.redis_url,
            settings.run_id,
            settings.partition,
            timeout_s=timeout_s,
            on_state=self._on_redis,
        )
        self._accounts = ColdAccounts(settings.run_dir, settings.partition)
        self.shard = ColdShard(
            config.replay,
            self.store,
            terms,
            self._accounts,
            rng=rng,
            on_event=on_event,
            cache_bytes=cache_bytes,
        )
        self.sink = Sink(
            self.shard,
            self.store,
            capacity_bytes=config.stream.capacity_bytes,
            fragment_transitions=terms.num_items,
            n_step=terms.n_step,
            watermarks=Watermarks(config.stream.high_watermark, config.stream.low_watermark),
            grace_s=config.replay.outage_s if grace_s is None else grace_s,
            rng=rng,
            on_event=on_event,
        )
        self._sink_servicer = TrajectoryServicer(
            self.sink,
            handshake,
            max_fragment_bytes=4 * terms.fragment_bytes + 2**20,
            check=self._check_fragment,
            on_release=self.sink.release,
        )
        self._shard_servicer = ReplayShardServicer(
            self.shard, handshake, message_bytes=config.stream.message_bytes
        )
        self._thread = threading.Thread(target=self._begin, name="cold-tier-start", daemon=True)

    def handlers(self) -> list[grpc.GenericRpcHandler[Any, Any]]:
        """What a server has to be given, with :data:`SERVICE_NAMES`."""
        return [self._sink_servicer.handler(), self._shard_servicer.handler()]

    def start(self) -> None:
        """Begin to read what Redis holds."""
        self._thread.start()

    def stop(self) -> None:
        """End the streams, write what was received, let go of Redis. Idempotent."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._shard_servicer.drain("the replay partition is draining")
        self.sink.stop()
        self.store.close()
        self._accounts.close()

    def observe(self, metrics: ReplayMetrics) -> None:
        """Bring the metrics up to date."""
        metrics.observe_cold(
            stats=self.shard.stats(),
            totals=self.shard.totals(),
            sink=self.sink.counts(),
            redis_reason=self.store.reason,
            redis_seconds=self.store.seconds,
        )

    def _begin(self) -> None:
        """Read Redis, again and again until it answers; then take in."""
        while not self._closed.is_set():
            try:
                self._restore()
            except StoreError:
                self._closed.wait(self._backoff.next_s())
                continue
            self.sink.start()
            self.ready.set()
            return

    def _restore(self) -> None:
        session, before = self._settings.session, self.store.session()
        resumed = bool(before) and before != session
        keep = not resumed or self._settings.config.replay.restore == "with"
        restored = self.shard.restore(keep=keep)
        if session != before:
            self.store.set_session(session)
        if restored.stored or restored.dropped or restored.redis_lost:
            self._on_event(
                "cold_tier_restored",
                reason="the run was resumed" if resumed else "the service was started again",
                stored=restored.stored,
                dropped=restored.dropped,
                redis_lost=restored.redis_lost,
            )

    def _check_fragment(self, fragment: Fragment) -> tuple[str, str] | None:
        wrong = self._check(fragment)
        if wrong is not None:
            return wrong
        shape, terms = (fragment.num_steps, fragment.num_lanes), self._settings.terms
        if shape != (terms.num_steps, terms.num_lanes):
            return "wrong_shape", f"{shape} steps and lanes, not {(terms.num_steps, terms.num_lanes)}"
        return None

    def _on_redis(self, reason: str, sentence: str) -> None:
        if reason:
            self._on_event("cold_tier_degraded", reason=reason, detail=sentence)
        else:
            self._on_event("cold_tier_recovered", reason="Redis takes writes again")
