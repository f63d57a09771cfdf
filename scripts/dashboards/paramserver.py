"""Versions and how they are made, spread and saved: the parameter server and its relays."""

from __future__ import annotations

from dashboards.model import PODS, Dashboard, Panel, Query, Row, rate, spread

_VERSIONS = Row(
    "Versions",
    (
        Panel(
            "Versions",
            "The newest version issued, the newest one saved, and what each relay holds.",
            "short",
            (
                Query(f"headrace_paramserver_policy_version{{{PODS}}}", "newest"),
                Query(f"headrace_paramserver_checkpoint_version{{{PODS}}}", "saved"),
                Query(f"headrace_relay_policy_version{{{PODS}}}"),
            ),
        ),
        Panel(
            "Publishes by outcome",
            "issued: a new version; repeated: a learner said again what had been issued; refused: it was "
            "not based on the newest one. All 0 with rounds.",
            "cps",
            (Query(rate("headrace_paramserver_publishes_total", "outcome"), "{{outcome}}"),),
        ),
        Panel(
            "Epoch",
            "Starts of the parameter server in this run. A step: it was started again.",
            "short",
            (Query(f"headrace_paramserver_epoch{{{PODS}}}"),),
        ),
        Panel(
            "Time to publish",
            "Seconds from the first byte of a publish until its version was visible to watchers.",
            "s",
            spread("headrace_paramserver_publish_seconds"),
        ),
    ),
)

_ROUNDS = Row(
    "Rounds of several learners",
    (
        Panel(
            "Contributions by outcome",
            "applied: from the newest version; late: older, counted in full; down_weighted: counted less; "
            "stale: dropped for their age; invalid: refused.",
            "cps",
            (Query(rate("headrace_paramserver_gradients_total", "outcome"), "{{outcome}}"),),
        ),
        Panel(
            "Lag of contributions",
            "Versions between the base of a contribution and the newest one when it came.",
            "short",
            spread("headrace_paramserver_gradient_lag"),
        ),
        Panel(
            "Rounds by what closed them",
            "complete: all, or the quorum, were there; window: sync.window_s was over; deadline: one was "
            "waited for in vain; ended: with the run.",
            "cps",
            (Query(rate("headrace_paramserver_rounds_total", "closed_by"), "{{closed_by}}"),),
        ),
        Panel(
            "Time of a round",
            "Seconds from the first contribution of a round to its close: how far the learners are apart.",
            "s",
            spread("headrace_paramserver_round_seconds"),
        ),
        Panel(
            "Time to answer",
            "Seconds from a contribution's arrival to its answer: what a learner waits for the others.",
            "s",
            spread("headrace_paramserver_sync_rtt_seconds"),
        ),
        Panel(
            "Time to aggregate",
            "Seconds to make new parameters of a closed round.",
            "s",
            spread("headrace_paramserver_aggregation_seconds"),
        ),
        Panel(
            "Learners and local steps",
            "Learners that take part in rounds, and gradient steps between two exchanges as "
            "sync.local_steps: auto has chosen them (0: they are fixed).",
            "short",
            (
                Query(f"headrace_paramserver_learners{{{PODS}}}", "learners"),
                Query(f"headrace_paramserver_local_steps{{{PODS}}}", "local steps {{pod}}"),
            ),
        ),
        Panel(
            "What local steps are chosen by",
            "Idle share high: learners wait for rounds, more local steps. Jitter of the return high: fewer.",
            "percentunit",
            (
                Query(f"headrace_paramserver_idle_share{{{PODS}}}", "idle share {{pod}}"),
                Query(f"headrace_paramserver_return_jitter{{{PODS}}}", "return jitter {{pod}}"),
            ),
        ),
    ),
)

_SPREADING = Row(
    "Watchers",
    (
        Panel(
            "Watchers",
            "Watch streams open, at the parameter server and at each relay.",
            "short",
            (Query(f"headrace_paramserver_watchers{{{PODS}}}"),),
        ),
        Panel(
            "Versions sent and skipped",
            "Versions sent whole, and those that a watcher never got because a newer one was there when it "
            "was ready. Many skipped: relays, or a faster network.",
            "cps",
            (
                Query(rate("headrace_paramserver_sent_versions_total"), "sent by {{pod}}"),
                Query(rate("headrace_paramserver_skipped_versions_total"), "skipped by {{pod}}"),
            ),
        ),
        Panel(
            "Bytes sent",
            "Parameters that go out to watchers in a second.",
            "Bps",
            (Query(rate("headrace_paramserver_sent_bytes_total")),),
        ),
        Panel(
            "Bytes held",
            "All versions in memory. A slow watcher keeps the one it is being sent.",
            "bytes",
            (Query(f"headrace_paramserver_held_bytes{{{PODS}}}"),),
        ),
        Panel(
            "Relays: silence of upstream",
            "Seconds since a relay last heard from what it watches, which speaks at least every five.",
            "s",
            (Query(f"headrace_relay_upstream_silent_seconds{{{PODS}}}"),),
            limits=(15.0,),
        ),
        Panel(
            "Relays: versions received",
            "Versions received whole in a second, and sends that were cut off for a slow watcher to begin "
            "again.",
            "cps",
            (
                Query(rate("headrace_relay_received_versions_total"), "received by {{pod}}"),
                Query(rate("headrace_relay_begun_again_total"), "begun again by {{pod}}"),
            ),
        ),
    ),
)

_SAVING = Row(
    "Saving and books",
    (
        Panel(
            "Time of a checkpoint",
            "Seconds to write one checkpoint to the disk.",
            "s",
            spread("headrace_paramserver_checkpoint_seconds"),
            width=8,
        ),
        Panel(
            "Failures",
            "Checkpoints and journal entries that could not be written in five minutes. Must be 0.",
            "short",
            (
                Query(
                    f"sum(increase(headrace_paramserver_checkpoint_failures_total{{{PODS}}}[5m]))",
                    "checkpoints",
                ),
                Query(f"sum(increase(headrace_paramserver_journal_failures_total{{{PODS}}}[5m]))", "journal"),
            ),
            width=8,
            limits=(1.0,),
        ),
        Panel(
            "Members",
            "Samplers that have joined and are there; those of a run on one machine don't join.",
            "short",
            (Query(f"headrace_paramserver_members{{{PODS}}}"),),
            width=8,
        ),
    ),
)

DASHBOARD = Dashboard(
    "headrace-paramserver",
    "Headrace / Parameter server",
    "Versions and how they are made, spread and saved.",
    (_VERSIONS, _ROUNDS, _SPREADING, _SAVING),
)
