"""Metrics of the parameter server and of its relays."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headrace.flow.ledger import Ledger
from headrace.metrics import ServiceMetrics, begin_at_zero
from headrace.sync.rounds import CLOSED_BY
from headrace.sync.staleness import OUTCOMES

PUBLISHED = ("issued", "repeated", "refused")
LAG_BUCKETS_VERSIONS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
SECONDS_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)


class WatchMetrics(ServiceMetrics):
    """All collectors of a process that serves watches: a parameter server or a relay."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.local_steps = Gauge(
            "headrace_paramserver_local_steps",
            "Gradient steps between two exchanges, as chosen by how the run goes (sync.local_steps: auto).",
            registry=registry,
        )
        self.return_jitter = Gauge(
            "headrace_paramserver_return_jitter",
            "Scatter of the training return around its trend over its range; high: fewer local steps.",
            registry=registry,
        )
        self.idle_share = Gauge(
            "headrace_paramserver_idle_share",
            "Share of learners' time spent waiting for rounds; high: more local steps.",
            registry=registry,
        )
        self.watchers = Gauge("headrace_paramserver_watchers", "Watch streams open.", registry=registry)
        self.sent_versions = Counter(
            "headrace_paramserver_sent_versions", "Versions sent whole to a watcher.", registry=registry
        )
        self.skipped_versions = Counter(
            "headrace_paramserver_skipped_versions",
            "Versions that a watcher never got because a newer one was there when it was ready.",
            registry=registry,
        )
        self.sent_bytes = Counter(
            "headrace_paramserver_sent_bytes", "Bytes of parameters sent to watchers.", registry=registry
        )
        self.held_bytes = Gauge(
            "headrace_paramserver_held_bytes", "Bytes of all versions in memory.", registry=registry
        )


class ParamserverMetrics(WatchMetrics):
    """All collectors of a parameter server process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.policy_version = Gauge(
            "headrace_paramserver_policy_version",
            "Number of the newest version ever issued. Never falls.",
            registry=registry,
        )
        self.epoch = Gauge(
            "headrace_paramserver_epoch", "Starts of the parameter server in this run.", registry=registry
        )
        self.run_ended = Gauge(
            "headrace_paramserver_run_ended",
            "1 once the run has ended: finished, interrupted or failed. No version is missed from then on.",
            registry=registry,
        )
        self.publishes = Counter(
            "headrace_paramserver_publishes",
            "Publishes by outcome: issued (a new version), repeated (said again), refused.",
            ["outcome"],
            registry=registry,
        )
        self.publish_seconds = Histogram(
            "headrace_paramserver_publish_seconds",
            "Seconds from the first byte of a publish until its version was visible to watchers.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.members = Gauge(
            "headrace_paramserver_members",
            "Samplers that have joined and are there; those of a local run don't join.",
            registry=registry,
        )
        self.ledger = Gauge(
            "headrace_paramserver_ledger",
            "Where the transitions of the run are: produced = trained + stored + evicted + dropped + "
            "in_flight + lost.",
            ["state"],
            registry=registry,
        )
        self.ledger_unbalanced = Gauge(
            "headrace_paramserver_ledger_unbalanced",
            "1 if the ledger of the run doesn't add up, else 0.",
            registry=registry,
        )
        self.learners = Gauge(
            "headrace_paramserver_learners", "Learners that take part in rounds.", registry=registry
        )
        self.gradients = Counter(
            "headrace_paramserver_gradients",
            "Contributions of learners by outcome: applied (from the newest version), late (older, in full), "
            "down_weighted, stale (dropped for their age), invalid (refused).",
            ["outcome"],
            registry=registry,
        )
        self.gradient_lag = Histogram(
            "headrace_paramserver_gradient_lag",
            "Versions between the base of a contribution and the newest one when it came.",
            buckets=LAG_BUCKETS_VERSIONS,
            registry=registry,
        )
        self.rounds = Counter(
            "headrace_paramserver_rounds",
            "Rounds by what closed them: complete, window, deadline, ended (with the run).",
            ["closed_by"],
            registry=registry,
        )
        self.round_seconds = Histogram(
            "headrace_paramserver_round_seconds",
            "Seconds from the first contribution of a round to its close.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.aggregation_seconds = Histogram(
            "headrace_paramserver_aggregation_seconds",
            "Seconds to make new parameters of a closed round.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.sync_rtt_seconds = Histogram(
            "headrace_paramserver_sync_rtt_seconds",
            "Seconds from a contribution's arrival to its answer.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.checkpoint_version = Gauge(
            "headrace_paramserver_checkpoint_version", "Number of the newest checkpoint.", registry=registry
        )
        self.checkpoint_seconds = Histogram(
            "headrace_paramserver_checkpoint_seconds",
            "Seconds to write one checkpoint to the disk.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.checkpoint_failures = Counter(
            "headrace_paramserver_checkpoint_failures",
            "Checkpoints that could not be written (disk full, not writable). Each is retried.",
            registry=registry,
        )
        self.journal_failures = Counter(
            "headrace_paramserver_journal_failures",
            "Versions that could not be written to the journal. The run goes on without it.",
            registry=registry,
        )
        self.evaluation_return = Gauge(
            "headrace_paramserver_evaluation_return", "Mean return of the last evaluation.", registry=registry
        )
        self.best_return = Gauge(
            "headrace_paramserver_best_return", "Best mean return of an evaluation.", registry=registry
        )
        begin_at_zero(self.publishes, "outcome", PUBLISHED)
        begin_at_zero(self.gradients, "outcome", OUTCOMES)
        begin_at_zero(self.rounds, "closed_by", CLOSED_BY)

    def observe_books(self, members: int, ledger: Ledger) -> None:
        """Bring the ledger's sums up to date."""
        self.members.set(members)
        self.ledger_unbalanced.set(not ledger.balanced)
        for state, total in ledger.sums().items():
            self.ledger.labels(state=state).set(total)


class RelayMetrics(WatchMetrics):
    """All collectors of a relay process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.policy_version = Gauge(
            "headrace_relay_policy_version",
            "Number of the newest version held. Never falls.",
            registry=registry,
        )
        self.upstream_silent_seconds = Gauge(
            "headrace_relay_upstream_silent_seconds",
            "Seconds since upstream was last heard; it speaks at least every 5 s.",
            registry=registry,
        )
        self.received_versions = Counter(
            "headrace_relay_received_versions", "Versions received whole from upstream.", registry=registry
        )
        self.begun_again = Counter(
            "headrace_relay_begun_again",
            "Sends cut off in the middle, for a slow watcher to begin again with the newest version.",
            registry=registry,
        )
