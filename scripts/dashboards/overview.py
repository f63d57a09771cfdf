"""One run at a glance, in the order in which to look: data, versions, communication, algorithm."""

from __future__ import annotations

from dashboards.model import PODS, RUN, Dashboard, Panel, Query, Row, rate

_STATE = Row(
    "Now",
    (
        Panel(
            "Run",
            "Whether the run still learns. It has ended once its goal is reached, it was stopped or it "
            "failed.",
            "none",
            (Query(f"max(headrace_paramserver_run_ended{{{RUN}}})", ""),),
            kind="stat",
            width=4,
            height=4,
            mappings={"0": ("going on", "green"), "1": ("ended", "blue")},
        ),
        Panel(
            "Ledger",
            "Whether every transition that was produced is trained, stored, dropped for a reason, on its "
            "way or lost for a cause. If not, see HeadraceLedgerUnbalanced.",
            "none",
            (Query(f"max(headrace_paramserver_ledger_unbalanced{{{RUN}}})", ""),),
            kind="stat",
            width=4,
            height=4,
            mappings={"0": ("balanced", "green"), "1": ("unbalanced", "red")},
        ),
        Panel(
            "Firing alerts",
            "Alerts of this run that fire. docs/observability.md says what to do about each.",
            "none",
            (
                Query(
                    f'count(ALERTS{{alertname=~"Headrace.*", alertstate="firing", {RUN}}}) or vector(0)',
                    "",
                ),
            ),
            kind="stat",
            width=4,
            height=4,
            limits=(1.0,),
        ),
        Panel(
            "Processes",
            "Processes whose metrics could be read.",
            "none",
            (Query(f"count(headrace_build_info{{{RUN}}})", ""),),
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Version",
            "Number of the newest version. It never falls, over all restarts.",
            "none",
            (Query(f"max(headrace_paramserver_policy_version{{{RUN}}})", ""),),
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Best evaluation",
            "Best mean return of an evaluation; its parameters are checkpoints/best.",
            "none",
            (Query(f"max(headrace_paramserver_best_return{{{RUN}}})", ""),),
            kind="stat",
            width=4,
            height=4,
            minimum=None,
        ),
    ),
)

_DATA = Row(
    "Data",
    (
        Panel(
            "Environment steps and samples",
            "Steps that all samplers take in a second, and samples that learners learn from (transitions "
            "times epochs, or items drawn). Nothing else can be right while the steps are 0.",
            "cps",
            (
                Query(f"headrace:env_steps:rate1m{{{RUN}}}", "steps"),
                Query(f"headrace:samples_trained:rate1m{{{RUN}}}", "samples"),
            ),
        ),
        Panel(
            "Dropped and discarded",
            "Share of transitions that no version will contain, over five minutes. More than a few percent: "
            "see which reason on the learner and sampler dashboards.",
            "percentunit",
            (Query(f"headrace:transitions_dropped_share:rate5m{{{RUN}}}", "share"),),
            limits=(0.05,),
        ),
        Panel(
            "Ledger by state",
            "Where the transitions of the run are now: trained, stored in replay, evicted from it, dropped, "
            "in flight between sampler and version, or lost with a process.",
            "short",
            (Query(f'headrace_paramserver_ledger{{{RUN}, state!="produced"}}', "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "Episode return",
            "Mean return of training episodes, as the learners see it, and of evaluations, which act "
            "greedily.",
            "none",
            (
                Query(f"headrace:episode_return:mean{{{RUN}}}", "training"),
                Query(f"headrace_paramserver_evaluation_return{{{RUN}}}", "evaluation"),
            ),
            minimum=None,
        ),
    ),
)

_VERSIONS = Row(
    "Versions",
    (
        Panel(
            "Versions issued",
            "Versions in a second: how fast the run learns, in its own unit.",
            "cps",
            (Query(f"headrace:versions:rate1m{{{RUN}}}", "versions/s"),),
        ),
        Panel(
            "Age of what is trained on",
            "Updates between the version that acted and the one that is trained, of fragments (on-policy) "
            "and of what replay draws; and versions between the base of a learner's contribution and the "
            "newest one.",
            "short",
            (
                Query(f"headrace:trained_policy_lag:p50_5m{{{RUN}}}", "fragments p50"),
                Query(f"headrace:trained_policy_lag:p95_5m{{{RUN}}}", "fragments p95"),
                Query(f"headrace:gradient_lag:p95_5m{{{RUN}}}", "contributions p95"),
                Query(f"headrace:replay_sample_age_versions:p50_5m{{{RUN}}}", "replay p50"),
                Query(f"headrace:replay_sample_age_versions:p95_5m{{{RUN}}}", "replay p95"),
            ),
        ),
    ),
)

_COMMUNICATION = Row(
    "Communication",
    (
        Panel(
            "Who waits for whom",
            "Share of time that samplers are throttled by the flow control, that learners wait for "
            "anything, and that they wait for experience. Samplers throttled: more learner. Learners "
            "starved: more samplers. Both: stuck.",
            "percentunit",
            (
                Query(f"headrace:sampler_throttled_share:rate1m{{{RUN}}}", "samplers throttled"),
                Query(f"headrace:learner_wait_share:rate1m{{{RUN}}}", "learners waiting"),
                Query(f"headrace:learner_starved_share:rate1m{{{RUN}}}", "learners starved"),
            ),
            maximum=1,
        ),
        Panel(
            "Time of exchanges (p95)",
            "Seconds to publish a version (one learner), from the first contribution of a round to its "
            "close, and from a contribution to its answer (several).",
            "s",
            (
                Query(f"headrace:publish_seconds:p95_5m{{{RUN}}}", "publish"),
                Query(f"headrace:round_seconds:p95_5m{{{RUN}}}", "round"),
                Query(f"headrace:sync_rtt_seconds:p95_5m{{{RUN}}}", "answer"),
            ),
        ),
    ),
)

_PROCESSES = Row(
    "Processes",
    (
        Panel(
            "Starts",
            "When each process was started. A step is a restart, or a new pod.",
            "dateTimeAsIso",
            (Query(f'process_start_time_seconds{{{PODS}, job=~".*headrace.*"}} * 1000'),),
            width=8,
            minimum=None,
        ),
        Panel(
            "CPU",
            "Cores that each process keeps busy.",
            "short",
            (Query(rate("process_cpu_seconds_total", where='job=~".*headrace.*"')),),
            width=8,
        ),
        Panel(
            "Memory",
            "Resident memory of each process, without those of its children (workers of environments).",
            "bytes",
            (Query(f'process_resident_memory_bytes{{{PODS}, job=~".*headrace.*"}}'),),
            width=8,
        ),
        Panel(
            "Versions and configurations",
            "What each process is. All must have the same config_digest; those with another one are refused.",
            "none",
            (Query(f"headrace_build_info{{{PODS}}}", ""),),
            kind="table",
            width=24,
        ),
    ),
)

DASHBOARD = Dashboard(
    "headrace-overview",
    "Headrace / Overview",
    "One run at a glance: look from top to bottom and stop at the first thing that is wrong.",
    (_STATE, _DATA, _VERSIONS, _COMMUNICATION, _PROCESSES),
)
