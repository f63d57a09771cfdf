"""What samplers and the evaluator do, and what they wait for."""

from __future__ import annotations

from dashboards.model import PODS, Dashboard, Panel, Query, Row, quantile, rate, spread

_DATA = Row(
    "Data",
    (
        Panel(
            "Environment steps",
            "Steps a second of each sampler, all its lanes together.",
            "cps",
            (Query(rate("headrace_sampler_env_steps_total")),),
        ),
        Panel(
            "Step time",
            "Seconds of one step of all lanes together, without the policy. A long p99: some environment is "
            "slow now and then, and the whole vector waits for it.",
            "s",
            spread("headrace_sampler_env_step_seconds"),
        ),
        Panel(
            "Episodes",
            "Episodes that end in a second, of each sampler.",
            "cps",
            (Query(rate("headrace_sampler_episodes_total")),),
        ),
        Panel(
            "Episode return",
            "Mean return of the episodes that ended in the last fragment that had any. One sampler that "
            "stays apart from the others has another environment, or an exploration of its own.",
            "none",
            (Query(f"headrace_sampler_episode_return{{{PODS}}}"),),
            minimum=None,
        ),
        Panel(
            "Transitions by state",
            "Produced in environments, sealed into fragments, discarded with bad episodes.",
            "cps",
            (
                Query(
                    rate("headrace_transitions_total", "state", where='state=~"produced|sealed|discarded"'),
                    "{{state}}",
                ),
            ),
        ),
        Panel(
            "Environments rebuilt",
            "Environments rebuilt in five minutes after a fault: they raised, hung, died or gave bad "
            "numbers.",
            "short",
            (
                Query(
                    "sum by (pod, reason) "
                    f"(increase(headrace_sampler_environment_restarts_total{{{PODS}}}[5m]))",
                    "{{pod}} {{reason}}",
                ),
            ),
        ),
    ),
)

_VERSIONS = Row(
    "Versions",
    (
        Panel(
            "Version that acts",
            "Number of the version of each sampler. All should rise together with the newest one.",
            "short",
            (
                Query(f"headrace_sampler_policy_version{{{PODS}}}"),
                Query('max(headrace_paramserver_policy_version{namespace="$namespace"})', "newest"),
            ),
        ),
        Panel(
            "Lag when acting",
            "Updates between the version that acted and the newest one that the sampler had heard of.",
            "short",
            (Query(f"headrace_sampler_acting_policy_lag{{{PODS}}}"),),
        ),
    ),
)

_COMMUNICATION = Row(
    "Communication",
    (
        Panel(
            "Throttled by reason",
            "Share of time, mean over samplers, by what they wait for. credit: the learner's buffer is "
            "full; permit: the pace of updates; parameters: a newer version; connection: they can't reach "
            "the learner; samples_per_insert: replay has more than learners draw.",
            "percentunit",
            (
                Query(
                    "avg by (reason) "
                    f"(rate(headrace_sampler_throttled_seconds_total{{{PODS}}}[$__rate_interval]))",
                    "{{reason}}",
                ),
            ),
            stacked=True,
            maximum=1,
        ),
        Panel(
            "Throttled by sampler",
            "Share of time that each sampler can't step, for any reason.",
            "percentunit",
            (Query(rate("headrace_sampler_throttled_seconds_total")),),
            maximum=1,
        ),
        Panel(
            "Fragments",
            "Fragments that each sampler seals in a second.",
            "cps",
            (Query(rate("headrace_sampler_fragments_total")),),
        ),
        Panel(
            "Unsettled bytes",
            "Fragments that a sampler keeps until they are part of a version, or dropped. Rising without an "
            "end: the learner takes in but doesn't publish.",
            "bytes",
            (Query(f"headrace_sampler_unsettled_bytes{{{PODS}}}"),),
        ),
        Panel(
            "Quota",
            "Steps per lane that leveling asks of each sampler's fragments, so that slow and fast ones "
            "finish together; 0: a whole fragment.",
            "short",
            (Query(f"headrace_sampler_quota_steps{{{PODS}}}"),),
        ),
        Panel(
            "Hot tier",
            "Chunks that a sampler holds for replay, over the room for them; 0 without replay.",
            "percentunit",
            (Query(f"headrace_sampler_hot_tier_fill_ratio{{{PODS}}}"),),
            maximum=1,
        ),
    ),
)

_EVALUATOR = Row(
    "Evaluator",
    (
        Panel(
            "Return of evaluations",
            "Mean return of the last evaluation, which acts greedily.",
            "none",
            (Query(f"headrace_evaluator_return{{{PODS}}}"),),
            width=8,
            minimum=None,
        ),
        Panel(
            "Version evaluated",
            "Number of the version that was evaluated last. If it stops rising, evaluations take too long "
            "or the evaluator hears of no version.",
            "short",
            (Query(f"headrace_evaluator_policy_version{{{PODS}}}"),),
            width=8,
        ),
        Panel(
            "Time of an evaluation",
            "Median of the seconds that one evaluation takes.",
            "s",
            (Query(quantile(0.5, "headrace_evaluator_seconds", "pod")),),
            width=8,
        ),
    ),
)

DASHBOARD = Dashboard(
    "headrace-sampler",
    "Headrace / Samplers",
    "What samplers and the evaluator do, and what they wait for.",
    (_DATA, _VERSIONS, _COMMUNICATION, _EVALUATOR),
)
