"""The sections of the configuration document: every field with its unit and a sentence (docs/config.md)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from headrace.config.algorithms import AlgorithmConfig, PpoConfig
from headrace.config.section import Section


class StopConfig(Section):
    """When the run ends. The first condition that is met ends it; at least one must be set."""

    env_steps: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Environment steps trained on, over the whole run."
    )
    updates: Annotated[int, Field(ge=1)] | None = Field(None, description="Updates, over the whole run.")
    wall_s: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Seconds of wall-clock time since this start of the run."
    )
    return_: float | None = Field(
        None,
        alias="return",
        description="Mean evaluation return that counts as solved (training return if evaluation is off).",
    )


class RunConfig(Section):
    """The run itself."""

    name: str = Field("", max_length=100, description="Label in the run's folder name; empty: none.")
    seed: int = Field(
        1, ge=0, lt=2**31, description="Seed from which every other seed of the run is derived."
    )
    stop: StopConfig = Field(default_factory=StopConfig, description="When the run ends.")


class EnvironmentConfig(Section):
    """What is learned in."""

    id: str = Field(
        description="Gymnasium id, `module:EnvId` (the module is imported first), or `module:factory` "
        "(a callable)."
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the environment.")
    lanes: int = Field(32, ge=1, le=65536, description="Environments stepped together by one sampler.")
    vectorization: Literal["sync", "async", "native", "envpool"] = Field(
        "sync",
        description="sync: in the sampler's process; async: in spawned worker processes (survives hangs and "
        "exits of an environment); native: the environment's own vector class; envpool: EnvPool, if "
        "installed.",
    )
    workers: int = Field(
        2, ge=1, le=1024, description="Worker processes for `async`; the lanes are spread over them."
    )
    autoreset: Literal["auto", "same_step", "next_step"] = Field(
        "auto",
        description="How a native vector resets ended lanes; auto: ask it. Others always use same_step.",
    )
    max_episode_steps: int | None = Field(
        None, ge=1, description="Step cap set by the sampler, in steps; counts as truncation. Empty: none."
    )
    wrappers: list[str] = Field(
        default_factory=list, description="Wrappers applied in order, each `module:callable` taking the env."
    )
    step_timeout_s: float = Field(
        60.0, gt=0, description="Seconds after which a step or reset that has not returned counts as hung."
    )


class PolicyConfig(Section):
    """The network."""

    network: str = Field(
        "auto",
        description="auto (cnn for images, else mlp), mlp, cnn, or `module:factory` "
        "called with (observation spec, action spec, this section).",
    )
    hidden: list[Annotated[int, Field(ge=1)]] = Field([64, 64], description="Units of the hidden layers.")
    activation: Literal["tanh", "relu"] = Field("tanh", description="Activation between layers.")
    normalize_observation: bool = Field(
        False, description="Normalize float observations by running mean and standard deviation."
    )
    observation_clip: float = Field(
        10.0, gt=0, description="Normalized observations are clipped to this many standard deviations."
    )
    initial_log_std: float = Field(
        0.0, description="Initial log standard deviation of continuous actions, in units of half the range."
    )


class SamplerConfig(Section):
    """Samplers: environments plus a copy of the policy."""

    count: int = Field(
        1,
        ge=1,
        le=1024,
        description="Sampler processes: all of a local run, on a cluster as many as are usual.",
    )
    max_count: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Most samplers at the same time, where they come and go; empty: 64, or count if that is "
        "more.",
    )
    fragment_length: int = Field(128, ge=1, le=65536, description="Steps per lane in one fragment.")
    leveling: Literal["off", "auto"] = Field(
        "off",
        description="auto: slower samplers make shorter fragments, so that all finish together; "
        "off: the same length for all.",
    )
    leveling_min_share: float = Field(
        0.1, gt=0, le=1, description="Least part of fragment_length that a slow sampler is asked for."
    )
    actor: Literal["auto", "numpy", "torch"] = Field(
        "auto", description="How the policy is computed; auto: numpy for small MLPs, else torch."
    )
    torch_threads: int = Field(1, ge=1, description="Threads of torch in a sampler.")
    max_consecutive_faults: int = Field(
        5,
        ge=1,
        description="Faults of one lane in a row, without a finished episode between, that end the sampler.",
    )
    restart_backoff_s: float = Field(
        0.1, ge=0, description="Seconds before a faulty environment is rebuilt; doubles per fault in a row."
    )
    drain_s: float = Field(10.0, gt=0, description="Seconds a sampler may take to drain after SIGTERM.")


class LearnerConfig(Section):
    """Learners."""

    count: int = Field(
        1, ge=1, le=64, description="Learner replicas; `sync.mode` says how they work together."
    )
    torch_threads: int = Field(1, ge=1, description="Threads of torch in the learner.")
    device: Literal["cpu", "cuda", "auto"] = Field("cpu", description="Where the learner computes.")
    prefetch: int = Field(1, ge=0, le=16, description="Batches assembled ahead of the update.")
    drain_s: float = Field(10.0, gt=0, description="Seconds the learner may take to drain after SIGTERM.")


class StreamConfig(Section):
    """Flow control between samplers and learner."""

    capacity_bytes: int = Field(
        64 * 2**20, ge=2**16, description="Bytes of fragments the learner holds or has granted at most."
    )
    high_watermark: float = Field(
        0.8, gt=0, le=1, description="Share of the capacity from which no credit is granted."
    )
    low_watermark: float = Field(
        0.2, ge=0, lt=1, description="Share of the capacity below which the learner may take a smaller batch."
    )
    batch_deadline_s: float | None = Field(
        None,
        gt=0,
        description="Seconds after which the learner trains on a smaller batch instead of waiting; "
        "empty: wait.",
    )
    straggler_deadline_s: float = Field(
        30.0,
        gt=0,
        description="Seconds the learner waits for an overdue fragment before going on without it.",
    )
    codec: Literal["protobuf", "msgpack", "json", "shared_memory"] = Field(
        "protobuf", description="How fragments are written; shared_memory needs both ends on one node."
    )
    message_bytes: int = Field(
        2**20, ge=2**12, le=2**20, description="Largest message on a stream, in bytes."
    )


class SyncConfig(Section):
    """How learners work together, and how far samplers and learners may be apart."""

    mode: Literal["sync", "soft_sync", "async", "all_reduce"] = Field(
        "sync",
        description="sync: a version takes the work of all learners; soft_sync: of those done within a "
        "window; async: of one; all_reduce: learners average each gradient among themselves.",
    )
    exchange: Literal["auto", "gradients", "changes"] = Field(
        "auto",
        description="What learners hand in. gradients: the paramserver steps along them; changes: each "
        "learner steps by itself and hands in how its parameters have changed; auto: gradients where an "
        "update is a single step, else changes.",
    )
    quorum: int | None = Field(
        None,
        ge=1,
        description="Learners whose work closes a round; empty: all that are connected (async: one).",
    )
    window_s: float | None = Field(
        0.05,
        gt=0,
        description="Seconds after its first contribution at which a soft_sync round closes; empty: never.",
    )
    straggler_deadline_s: float | None = Field(
        30.0,
        gt=0,
        description="Seconds after its first contribution at which any round closes; empty: never.",
    )
    local_steps: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] | None = Field(
        None,
        description="Gradient steps a learner takes or sums up between two exchanges, in whole updates; "
        "auto: 8, 16 or 32, fewer while the return jitters, more while learners idle; empty: one update.",
    )
    full_weight_lag: int = Field(
        4, ge=0, description="Lag of a contribution, in versions, up to which it counts in full."
    )
    max_lag: int | None = Field(
        16,
        ge=0,
        description="Lag of a contribution, in versions, beyond which it is dropped; empty: never.",
    )
    staleness_weight: Literal["inverse", "exponential", "none"] = Field(
        "inverse",
        description="How a contribution counts that is e versions beyond full_weight_lag: 1 / (1 + e), "
        "2 ** -e, or in full.",
    )
    group_size: int | None = Field(
        None,
        ge=2,
        le=64,
        description="Learners that average each gradient among themselves and count as one in rounds: "
        "learner i belongs to group i / group_size; empty: none do (all_reduce: all).",
    )
    collective_timeout_s: float = Field(
        60.0,
        gt=0,
        description="Seconds that learners of a group wait for one of them before they regroup without it. "
        "One that dies is noticed at once.",
    )
    transport_dtype: Literal["float32", "float16", "bfloat16"] = Field(
        "float32", description="Numbers of contributions on their way; 16 bits halve their bytes."
    )
    max_policy_lag: int = Field(
        1, ge=0, description="Largest policy lag of a trained fragment, in updates. 0: lockstep."
    )
    lag_control: Literal["pace", "drop"] = Field(
        "pace",
        description="pace: samplers produce no more than the bound allows, nothing is thrown away; "
        "drop: they run freely and what is too old is dropped.",
    )


class ReplayConfig(Section):
    """Replay, for algorithms that learn from it: the hot tier in the samplers, the cold tier in Redis."""

    hot_capacity_bytes: int = Field(
        256 * 2**20, ge=2**16, description="Bytes of experience and index that each sampler holds."
    )
    cold: Literal["auto", "off", "required"] = Field(
        "auto",
        description="The cold tier. auto: where a Redis is found; required: no start without one; off: none.",
    )
    cold_capacity_bytes: int = Field(
        1024 * 2**20, ge=2**16, description="Compressed bytes that all cold partitions hold together."
    )
    partitions: int = Field(1, ge=1, le=64, description="Replay services that share the cold tier.")
    capacity_updates: int | None = Field(
        None,
        ge=1,
        description="Experience older than this many updates is evicted from the cold tier; empty: none is.",
    )
    selector: Literal["uniform", "prioritized", "fifo", "lifo"] = Field(
        "uniform", description="How items are drawn. fifo, lifo: oldest or newest first, in each shard."
    )
    remover: Literal["fifo", "lifo", "uniform", "prioritized"] = Field(
        "fifo",
        description="Which chunk leaves a full hot tier: the oldest, newest, any, or the one of least mass.",
    )
    priority_exponent: float = Field(
        0.6, ge=0, le=1, description="Exponent of priorities, for the prioritized selector."
    )
    importance_sampling_exponent: float = Field(
        0.4, ge=0, le=1, description="Exponent of importance weights. 0: no correction."
    )
    freshness_half_life: float | None = Field(
        None,
        gt=0,
        description="Policy lag, in updates, at which an item is half as likely; empty: age doesn't matter.",
    )
    freshness_floor: float = Field(
        0.05, ge=0, le=1, description="Smallest factor that freshness leaves to an old item."
    )
    max_times_sampled: int | None = Field(
        None, ge=1, description="An item leaves after it was drawn this many times; empty: never."
    )
    samples_per_insert: float | None = Field(
        None, gt=0, description="Times each transition is learned from, on average; empty: not controlled."
    )
    samples_per_insert_tolerance: float = Field(
        0.1,
        ge=0,
        description="How far the ratio may be off, as a share of min_size_to_sample x samples_per_insert; "
        "never less than lets samplers and learner go on by whole fragments and updates.",
    )
    min_size_to_sample: int = Field(
        1000, ge=1, description="Transitions stored before the first one is learned from."
    )
    rebalance_every: int = Field(
        1000, ge=1, description="Transitions inserted or drawn at a shard after which it reports its mass."
    )
    rebalance_drift: float = Field(
        0.05, gt=0, le=1, description="Relative change of its mass at which a shard reports at once."
    )
    restore: Literal["with", "without"] = Field(
        "with", description="Whether a resumed run takes up the experience in the cold tier, or drops it."
    )
    outage_s: float = Field(
        30.0, gt=0, description="Seconds after which a shard that is silent has left the directory."
    )


class ParamserverConfig(Section):
    """Versions and checkpoints."""

    keep: int = Field(3, ge=1, description="Checkpoints kept, besides the best.")
    checkpoint_every: int = Field(50, ge=1, description="Updates between two checkpoints.")
    max_watchers: int = Field(
        256, ge=1, description="Watchers served at the same time, by the paramserver and by each relay."
    )
    relays: int = Field(
        0,
        ge=0,
        description="Relays that pass versions on; samplers and evaluator then watch them in turns, instead "
        "of the paramserver.",
    )
    relay_fan_out: int | None = Field(
        None,
        ge=1,
        description="Relays that watch one server: beyond so many they form a tree; none: all watch the "
        "paramserver.",
    )


class EvaluationConfig(Section):
    """The evaluator: acts greedily with published versions, beside the training."""

    enabled: bool = Field(True, description="Run an evaluator process.")
    episodes: int = Field(100, ge=1, description="Episodes per evaluation.")
    lanes: int = Field(20, ge=1, description="Environments stepped together.")
    interval_s: float = Field(5.0, gt=0, description="Seconds between two evaluations, at least.")
    deterministic: bool = Field(True, description="Act with the mode of the policy instead of a sample.")


class ValidationConfig(Section):
    """What counts as bad data."""

    reward_max_abs: float = Field(1e9, gt=0, description="Rewards beyond this are refused.")
    observation_max_abs: float = Field(1e9, gt=0, description="Float observations beyond this are refused.")
    check_space: bool = Field(True, description="Refuse observations outside the observation space.")
    space_tolerance: float = Field(
        1e-4, ge=0, description="How far outside a bound a float observation may lie, in its own unit."
    )
    quarantine_max: int = Field(100, ge=0, description="Refused samples kept in quarantine per process.")


class MetricsConfig(Section):
    """Metrics and progress."""

    interval_s: float = Field(1.0, gt=0, description="Seconds between two rows of metrics.jsonl.")
    tensorboard: bool = Field(True, description="Write TensorBoard files into the run's folder.")


class NetworkConfig(Section):
    """Where services listen in a local run."""

    host: str = Field("127.0.0.1", description="Address to bind and connect to.")
    paramserver_port: int = Field(0, ge=0, le=65535, description="Port of the paramserver; 0: a free one.")
    learner_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port of the first learner, the others take the next ones; 0: free ones.",
    )
    replay_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port of the first replay service, the others take the next ones; 0: free ones.",
    )
    relay_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port of the first relay, the others take the next ones; 0: free ones.",
    )
    metrics_port: int = Field(
        0, ge=0, le=65535, description="First metrics port; each service takes the next one. 0: free ones."
    )


class SecurityConfig(Section):
    """What services demand of each other. In a local run the launcher makes what is needed."""

    tls: Literal["off", "mutual"] = Field(
        "off",
        description="mutual: no process starts without a certificate (`--tls`); off: those that were given "
        "one use it all the same.",
    )
    token: Literal["off", "required"] = Field(
        "off",
        description="required: no process starts without a token (`--token-file`); off: those that were "
        "given one use it all the same.",
    )


class RestartConfig(Section):
    """What the launcher does when a service dies."""

    max_restarts: int = Field(
        20, ge=0, description="Restarts per process within the window, before the run is given up."
    )
    window_s: float = Field(300.0, gt=0, description="Seconds over which restarts are counted.")
    backoff_s: float = Field(0.2, ge=0, description="Seconds before the first restart; doubles each time.")
    max_backoff_s: float = Field(10.0, gt=0, description="Longest backoff, in seconds.")


class Config(Section):
    """The whole document. Its digest rides on everything the run produces."""

    run: RunConfig = Field(default_factory=RunConfig, description="The run itself.")
    environment: EnvironmentConfig = Field(description="What is learned in.")
    policy: PolicyConfig = Field(default_factory=PolicyConfig, description="The network.")
    algorithm: AlgorithmConfig = Field(default_factory=PpoConfig, description="How it learns.")
    sampler: SamplerConfig = Field(default_factory=SamplerConfig, description="Samplers.")
    learner: LearnerConfig = Field(default_factory=LearnerConfig, description="The learner.")
    stream: StreamConfig = Field(default_factory=StreamConfig, description="Flow control.")
    sync: SyncConfig = Field(default_factory=SyncConfig, description="Policy lag.")
    replay: ReplayConfig = Field(default_factory=ReplayConfig, description="Replay.")
    paramserver: ParamserverConfig = Field(
        default_factory=ParamserverConfig, description="Versions and checkpoints."
    )
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig, description="The evaluator.")
    validation: ValidationConfig = Field(default_factory=ValidationConfig, description="Bad data.")
    metrics: MetricsConfig = Field(default_factory=MetricsConfig, description="Metrics and progress.")
    network: NetworkConfig = Field(default_factory=NetworkConfig, description="Addresses of a local run.")
    security: SecurityConfig = Field(default_factory=SecurityConfig, description="Security between services.")
    restart: RestartConfig = Field(default_factory=RestartConfig, description="Restarts in a local run.")
