"""What learners train on, what they wait for, and what becomes of their work."""

from __future__ import annotations

from dashboards.model import PODS, Dashboard, Panel, Query, Row, quantile, rate, spread

_DATA = Row(
    "Data",
    (
        Panel(
            "Samples learned from",
            "Transitions times epochs in a second, of each learner.",
            "cps",
            (Query(rate("headrace_learner_samples_total")),),
        ),
        Panel(
            "Transitions by reason",
            "Trained, and dropped by reason. stale: older than sync.max_policy_lag; missing: settled by a "
            "learner that died before it published; others: they failed validation.",
            "cps",
            (
                Query(
                    rate("headrace_transitions_total", "state, reason", where='state=~"trained|dropped"'),
                    "{{state}} {{reason}}",
                ),
            ),
        ),
        Panel(
            "Input buffer",
            "Bytes buffered over stream.capacity_bytes. From the high watermark on no credit is granted.",
            "percentunit",
            (Query(f"headrace_learner_input_fill_ratio{{{PODS}}}"),),
            maximum=1,
        ),
        Panel(
            "Samplers connected",
            "Streams of fragments into each learner.",
            "short",
            (Query(f"headrace_learner_streams{{{PODS}}}"),),
        ),
    ),
)

_VERSIONS = Row(
    "Versions",
    (
        Panel(
            "Policy lag of fragments",
            "Updates between the version that acted and the one that was trained. On-policy algorithms bear "
            "little.",
            "short",
            spread("headrace_learner_trained_policy_lag"),
        ),
        Panel(
            "Age of items from replay",
            "Updates since the items that are drawn were made. Shorter: a smaller replay, or "
            "freshness_half_life.",
            "short",
            spread("headrace_replay_sample_age_versions"),
        ),
        Panel(
            "Updates",
            "Exchanges in a second whose work is part of a version, of each learner.",
            "cps",
            (Query(rate("headrace_learner_updates_total")),),
        ),
        Panel(
            "Contributions by outcome",
            "What became of each learner's part of rounds. stale and invalid ones are thrown away; 0 where "
            "one learner publishes alone.",
            "cps",
            (Query(rate("headrace_learner_contributions_total", "outcome"), "{{outcome}}"),),
        ),
    ),
)

_COMMUNICATION = Row(
    "Communication",
    (
        Panel(
            "Waiting by reason",
            "Share of time, mean over learners, by what they wait for. samplers, straggler, empty, "
            "min_size_to_sample, samples_per_insert: experience; parameters: their own last version; "
            "assembly, sample: getting a batch ready; round: other learners; connection: replay's directory "
            "or shards.",
            "percentunit",
            (
                Query(
                    "avg by (reason) "
                    f"(rate(headrace_learner_wait_seconds_total{{{PODS}}}[$__rate_interval]))",
                    "{{reason}}",
                ),
            ),
            stacked=True,
            maximum=1,
        ),
        Panel(
            "Waiting by learner",
            "Share of time that each learner can't compute, for any reason. One that waits less than the "
            "others is the slow one that they wait for.",
            "percentunit",
            (Query(rate("headrace_learner_wait_seconds_total")),),
            maximum=1,
        ),
        Panel(
            "Publishing",
            "Seconds from handing a version to the parameter server until it was issued; without rounds.",
            "s",
            spread("headrace_learner_publish_seconds"),
        ),
        Panel(
            "Fragments that came twice",
            "Fragments in a second that came again after a reconnect and were recognised. Harmless, but a "
            "sign of connections that break.",
            "cps",
            (Query(rate("headrace_learner_duplicate_fragments_total")),),
        ),
    ),
)

_ALGORITHM = Row(
    "Algorithm",
    (
        Panel(
            "Episode return",
            "Mean return of the last 100 training episodes.",
            "none",
            (Query(f"headrace_learner_episode_return{{{PODS}}}"),),
            width=8,
            minimum=None,
        ),
        Panel(
            "Time of an update",
            "Median of the seconds that the algorithm computes for one update, of each learner.",
            "s",
            (Query(quantile(0.5, "headrace_learner_update_seconds", "pod")),),
            width=8,
        ),
        Panel(
            "Not finite",
            "Gradient steps skipped in five minutes because the loss or a gradient was not finite. Must be "
            "0.",
            "short",
            (Query(f"sum by (pod) (increase(headrace_learner_non_finite_total{{{PODS}}}[5m]))"),),
            width=8,
            limits=(1.0,),
        ),
    ),
)

DASHBOARD = Dashboard(
    "headrace-learner",
    "Headrace / Learners",
    "What learners train on, what they wait for, and what becomes of their work.",
    (_DATA, _VERSIONS, _COMMUNICATION, _ALGORITHM),
)
