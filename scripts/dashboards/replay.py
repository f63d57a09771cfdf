"""Replay: hot tiers at the samplers, cold partitions in Redis, and the directory that knows both."""

from __future__ import annotations

from dashboards.model import PODS, RUN, Dashboard, Panel, Query, Row, rate, spread

_DRAWING = Row(
    "Drawing",
    (
        Panel(
            "Items drawn by tier",
            "Items drawn in a second: from the samplers' own memory (hot) and from Redis (cold).",
            "cps",
            (Query(rate("headrace_replay_samples_total", "tier"), "{{tier}}"),),
            stacked=True,
        ),
        Panel(
            "Share of the hot tier",
            "Of the items drawn. It should be near the hot tier's share of the mass.",
            "percentunit",
            (Query(f"headrace:replay_hot_hit_share:rate1m{{{RUN}}}", "hot"),),
            maximum=1,
        ),
        Panel(
            "Age of items",
            "Updates since the items that are drawn were made.",
            "short",
            spread("headrace_replay_sample_age_versions"),
        ),
        Panel(
            "Drift of masses",
            "How far the masses that learners choose shards by are from the true ones (total variation, 0 "
            "to 1).",
            "percentunit",
            (Query(f"max(headrace_replay_mass_drift{{{RUN}}})", "drift"),),
            limits=(0.2,),
            maximum=1,
        ),
        Panel(
            "Held back by the limiter",
            "Share of time that the limiter holds back at least one sampler (insert) or learner (sample), "
            "to keep samples_per_insert. Insert: learners are the slow side; sample: samplers are.",
            "percentunit",
            (Query(rate("headrace_replay_limited_seconds_total", "reason"), "{{reason}}"),),
            maximum=1,
        ),
        Panel(
            "Shards",
            "Shards in the directory, by tier.",
            "short",
            (Query(f"sum by (tier) (headrace_replay_members{{{PODS}}})", "{{tier}}"),),
        ),
    ),
)

_STORING = Row(
    "Storing",
    (
        Panel(
            "Fill",
            "Hot tiers of the samplers and partitions of the cold tier, over their capacity.",
            "percentunit",
            (
                Query(f"headrace_sampler_hot_tier_fill_ratio{{{PODS}}}", "hot {{pod}}"),
                Query(f"headrace_replay_fill_ratio{{{PODS}}}", "{{tier}} {{pod}}"),
            ),
            maximum=1,
        ),
        Panel(
            "Memory of hot tiers",
            "Bytes of each sampler's hot tier and its index.",
            "bytes",
            (Query(f"headrace_sampler_hot_tier_bytes{{{PODS}}}"),),
        ),
        Panel(
            "Transitions in the cold tier",
            "active: in no other place; standby: their hot tier still has them.",
            "short",
            (
                Query(
                    f"sum by (state) (headrace_replay_stored_transitions{{{PODS}}})",
                    "{{state}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Left the cold tier",
            "Transitions in a second by reason. evicted: for want of room, which is normal; redis_lost, "
            "damaged: gone or unreadable; others: refused when they came.",
            "cps",
            (Query(rate("headrace_replay_dropped_total", "reason"), "{{reason}}"),),
        ),
    ),
)

_REDIS = Row(
    "Redis",
    (
        Panel(
            "Degraded",
            "1 while a partition can't use Redis for this reason. The run draws from the hot tier only then.",
            "short",
            (Query(f"headrace_replay_redis_degraded{{{PODS}}}", "{{pod}} {{reason}}"),),
            limits=(1.0,),
            maximum=1,
        ),
        Panel(
            "Time in calls",
            "Share of time spent in calls of Redis, by kind of call.",
            "percentunit",
            (Query(rate("headrace_replay_redis_seconds_total", "pod, reason"), "{{pod}} {{reason}}"),),
        ),
        Panel(
            "Sunk",
            "Compressed bytes written to Redis in a second.",
            "Bps",
            (Query(rate("headrace_replay_sink_bytes_total")),),
        ),
        Panel(
            "Sinking samplers",
            "Streams into the sink of each partition, and fragments in a second that came twice.",
            "short",
            (
                Query(f"headrace_replay_sink_streams{{{PODS}}}", "streams {{pod}}"),
                Query(rate("headrace_replay_sink_duplicates_total"), "twice {{pod}}"),
            ),
        ),
    ),
)

DASHBOARD = Dashboard(
    "headrace-replay",
    "Headrace / Replay",
    "Hot tiers at the samplers, cold partitions in Redis, and the directory that knows both.",
    (_DRAWING, _STORING, _REDIS),
)
