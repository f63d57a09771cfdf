"""The algorithms' sections: on-policy ones learn from fragments in order, off-policy ones from replay."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headrace.config.section import Section


class OnPolicyConfig(Section):
    """What all algorithms share that learn from fragments as they come."""

    name: str = Field(description="Which algorithm.")
    batch_steps: int = Field(
        4096, ge=1, description="Transitions per update; a multiple of lanes x fragment_length."
    )
    gamma: float = Field(0.99, ge=0, le=1, description="Discount per step.")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="Lambda of generalized advantage estimation.")
    learning_rate: float = Field(3e-4, gt=0, description="Step size of the optimizer.")
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "constant", description="linear: falls to zero at run.stop.env_steps (or run.stop.updates)."
    )
    entropy_coefficient: float = Field(0.0, ge=0, description="Weight of the entropy bonus.")
    value_coefficient: float = Field(0.5, ge=0, description="Weight of the value loss.")
    max_grad_norm: float = Field(0.5, gt=0, description="Gradients are clipped to this global L2 norm.")
    normalize_value: bool = Field(
        False, description="Learn values in units of their running standard deviation."
    )
    reward_scale: float = Field(1.0, gt=0, description="Rewards are multiplied by this before learning.")


class ClippedConfig(OnPolicyConfig):
    """What PPO and APPO share: several passes over each batch, held near where they began."""

    name: str = Field(description="Which algorithm.")
    epochs: int = Field(4, ge=1, description="Passes over each batch.")
    minibatch_size: int = Field(256, ge=1, description="Transitions per gradient step.")
    clip: float = Field(0.2, gt=0, description="Clip range of the importance ratio.")
    value_clip: float | None = Field(None, gt=0, description="Clip range of the value; empty: none.")
    normalize_advantage: bool = Field(True, description="Normalize advantages per minibatch.")
    target_kl: float | None = Field(
        None, gt=0, description="Epochs stop early past this approximate KL divergence; empty: never."
    )
    adam_epsilon: float = Field(1e-5, gt=0, description="Adam's epsilon.")


class PpoConfig(ClippedConfig):
    """Proximal policy optimization."""

    name: Literal["ppo"] = Field("ppo", description="Algorithm.")


class SingleStepConfig(OnPolicyConfig):
    """What A2C, A3C and IMPALA share: one gradient step per batch."""

    name: str = Field(description="Which algorithm.")
    learning_rate: float = Field(7e-4, gt=0, description="Step size of the optimizer.")
    gae_lambda: float = Field(1.0, ge=0, le=1, description="Lambda of generalized advantage estimation.")
    optimizer: Literal["rmsprop", "adam"] = Field("rmsprop", description="Optimizer.")
    optimizer_epsilon: float = Field(1e-5, gt=0, description="Epsilon of the optimizer.")
    rmsprop_decay: float = Field(0.99, gt=0, lt=1, description="Decay of RMSprop's mean square.")
    normalize_advantage: bool = Field(False, description="Normalize advantages per batch.")


class A2cConfig(SingleStepConfig):
    """Synchronous advantage actor-critic."""

    name: Literal["a2c"] = Field("a2c", description="Algorithm.")


class A3cConfig(SingleStepConfig):
    """Asynchronous advantage actor-critic: A2C on short batches, its gradients applied as they come."""

    name: Literal["a3c"] = Field("a3c", description="Algorithm.")
    entropy_coefficient: float = Field(0.01, ge=0, description="Weight of the entropy bonus.")


class VtraceConfig(OnPolicyConfig):
    """What IMPALA and APPO share: V-trace with the network as it is now, for experience of older versions."""

    name: str = Field(description="Which algorithm.")
    gae_lambda: float = Field(
        1.0, ge=0, le=1, description="Lambda of V-trace; with fresh experience that of GAE."
    )
    rho_bar: float = Field(
        1.0, gt=0, description="Largest importance ratio of a one-step error in value targets."
    )
    c_bar: float = Field(
        1.0,
        gt=0,
        description="Largest importance ratio in traces: how far corrections reach back; at most rho_bar.",
    )
    policy_rho_bar: float = Field(
        1.0, gt=0, description="Largest importance ratio by which a step counts in the policy's gradient."
    )


class ImpalaConfig(VtraceConfig, SingleStepConfig):
    """Importance weighted actor-learner: one step per batch, corrected for policy lag by V-trace."""

    name: Literal["impala"] = Field("impala", description="Algorithm.")
    entropy_coefficient: float = Field(0.01, ge=0, description="Weight of the entropy bonus.")


class AppoConfig(VtraceConfig, ClippedConfig):
    """PPO for lagging samplers: clipped around where the update began, V-trace for what is older."""

    name: Literal["appo"] = Field("appo", description="Algorithm.")
    gae_lambda: float = Field(
        0.95, ge=0, le=1, description="Lambda of V-trace; with fresh experience that of GAE."
    )
    policy_rho_bar: float = Field(
        2.0, gt=0, description="Largest importance ratio by which a step counts in the policy's gradient."
    )


class OffPolicyConfig(Section):
    """What DQN, DDPG, TD3 and SAC share."""

    name: str = Field(description="Which algorithm.")
    batch_size: int = Field(256, ge=1, description="Transitions per gradient step.")
    gradient_steps: int = Field(
        32, ge=1, description="Gradient steps per update, that is, between two published versions."
    )
    gamma: float = Field(0.99, ge=0, le=1, description="Discount per step.")
    n_step: int = Field(
        1,
        ge=1,
        description="Rewards summed before the target bootstraps, in steps; fewer at an episode's end.",
    )
    learning_rate: float = Field(1e-3, gt=0, description="Step size of the optimizer.")
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "constant", description="linear: falls to zero at run.stop.env_steps (or run.stop.updates)."
    )
    adam_epsilon: float = Field(1e-8, gt=0, description="Adam's epsilon.")
    max_grad_norm: float | None = Field(
        None,
        gt=0,
        description="Gradients of a network are clipped to this global L2 norm; empty: not clipped.",
    )
    tau: float = Field(
        0.005,
        gt=0,
        le=1,
        description="Share of the way that target networks move towards the learned ones; 1: a copy.",
    )
    target_every: int = Field(1, ge=1, description="Gradient steps between two moves of the target networks.")
    random_steps: int = Field(
        1000, ge=0, description="Environment steps, at the beginning, in which actions are uniformly random."
    )


class DqnConfig(OffPolicyConfig):
    """Deep Q-learning: one discrete choice per step."""

    name: Literal["dqn"] = Field("dqn", description="Algorithm.")
    batch_size: int = Field(64, ge=1, description="Transitions per gradient step.")
    tau: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the way that the target network moves towards the learned one; 1: a copy.",
    )
    target_every: int = Field(
        250, ge=1, description="Gradient steps between two moves of the target network."
    )
    random_steps: int = Field(
        0, ge=0, description="Environment steps, at the beginning, in which actions are uniformly random."
    )
    max_grad_norm: float | None = Field(
        10.0, gt=0, description="Gradients are clipped to this global L2 norm; empty: not clipped."
    )
    double: bool = Field(
        True, description="Choose the action that the target bootstraps from with the learned network."
    )
    dueling: bool = Field(False, description="Learn the state's value and the actions' advantages apart.")
    epsilon_initial: float = Field(
        1.0, ge=0, le=1, description="Probability of a random action at the beginning."
    )
    epsilon_final: float = Field(
        0.05, ge=0, le=1, description="Probability of a random action after exploration_steps."
    )
    exploration_steps: int = Field(
        10_000, ge=0, description="Environment steps over which the probability falls, linearly."
    )
    epsilon_ladder: bool = Field(
        False,
        description="Sampler i of N acts randomly with epsilon ** (1 + 7 i / (N - 1)) instead of epsilon.",
    )


class ActorCriticReplayConfig(OffPolicyConfig):
    """What DDPG, TD3 and SAC share: bounded continuous actions."""

    name: str = Field(description="Which algorithm.")
    actor_learning_rate: float | None = Field(
        None, gt=0, description="Step size of the actor's optimizer; empty: learning_rate."
    )


class DdpgConfig(ActorCriticReplayConfig):
    """Deep deterministic policy gradient."""

    name: Literal["ddpg"] = Field("ddpg", description="Algorithm.")
    exploration_noise: float = Field(
        0.1, ge=0, description="Standard deviation of the noise on actions, in units of half the range."
    )


class Td3Config(ActorCriticReplayConfig):
    """Twin delayed deep deterministic policy gradient."""

    name: Literal["td3"] = Field("td3", description="Algorithm.")
    target_every: int = Field(2, ge=1, description="Gradient steps between two moves of the target networks.")
    exploration_noise: float = Field(
        0.1, ge=0, description="Standard deviation of the noise on actions, in units of half the range."
    )
    policy_delay: int = Field(2, ge=1, description="Gradient steps of the critics to one of the actor.")
    target_noise: float = Field(
        0.2, ge=0, description="Standard deviation of the target's noise, in units of half the range."
    )
    target_noise_clip: float = Field(
        0.5, ge=0, description="Largest noise on the target's action, in units of half the range."
    )


class SacConfig(ActorCriticReplayConfig):
    """Soft actor-critic, its temperature adapted to a target entropy."""

    name: Literal["sac"] = Field("sac", description="Algorithm.")
    learning_rate: float = Field(3e-4, gt=0, description="Step size of the optimizer.")
    initial_alpha: float = Field(1.0, gt=0, description="Temperature at the beginning.")
    alpha_learning_rate: float | None = Field(
        None, gt=0, description="Step size of the temperature; empty: learning_rate."
    )
    target_entropy: float | None = Field(
        None, description="Entropy the policy is held at, in nats; empty: minus the number of components."
    )


AlgorithmConfig = Annotated[
    PpoConfig
    | AppoConfig
    | A2cConfig
    | A3cConfig
    | ImpalaConfig
    | DqnConfig
    | DdpgConfig
    | Td3Config
    | SacConfig,
    Field(discriminator="name"),
]
