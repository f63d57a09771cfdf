"""The values of :mod:`headrace.types` as messages of the parameter and run services, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from headrace.errors import InvalidDataError
from headrace.types import (
    Evaluation,
    LearnerAccount,
    PolicyVersion,
    RunPhase,
    RunStatus,
    RunView,
    SamplerIdentity,
    TrainingReport,
)
from headrace.v1 import common_pb2, parameters_pb2

_PHASES: dict[int, RunPhase] = {
    int(parameters_pb2.RunPhase.Value(f"RUN_PHASE_{phase.upper()}")): phase for phase in get_args(RunPhase)
}


def version_to_proto(version: PolicyVersion | None) -> common_pb2.PolicyVersion | None:
    """None stays None, which leaves a message's field unset."""
    return None if version is None else common_pb2.PolicyVersion(epoch=version.epoch, number=version.number)


def version_from_proto(message: common_pb2.PolicyVersion) -> PolicyVersion:
    """A version that is known to be set."""
    return PolicyVersion(message.epoch, message.number)


def identity_to_proto(sampler: SamplerIdentity) -> common_pb2.SamplerIdentity:
    """One incarnation of a sampler."""
    return common_pb2.SamplerIdentity(sampler_id=sampler.sampler_id, incarnation=sampler.incarnation)


def identity_from_proto(message: common_pb2.SamplerIdentity) -> SamplerIdentity:
    """Inverse of :func:`identity_to_proto`."""
    return SamplerIdentity(message.sampler_id, message.incarnation)


def phase_to_proto(phase: RunPhase) -> str:
    """The phase's name in the contract, which a message takes for its number."""
    return f"RUN_PHASE_{phase.upper()}"


def phase_from_proto(number: int) -> RunPhase:
    """Raises InvalidDataError if the peer sent none or an unknown one."""
    if number not in _PHASES:
        raise InvalidDataError(f"phase {number} of a run is unknown; known: {', '.join(_PHASES.values())}")
    return _PHASES[number]


def status_to_proto(status: RunStatus) -> parameters_pb2.RunState:
    """Phase, reason and version of a run."""
    return parameters_pb2.RunState(
        phase=phase_to_proto(status.phase), reason=status.reason, version=version_to_proto(status.version)
    )


def status_from_proto(message: parameters_pb2.RunState) -> RunStatus:
    """Inverse of :func:`status_to_proto`."""
    version = version_from_proto(message.version) if message.HasField("version") else None
    return RunStatus(phase_from_proto(message.phase), message.reason, version)


def report_to_proto(report: TrainingReport) -> parameters_pb2.TrainingReport:
    """What one update tells the world."""
    return parameters_pb2.TrainingReport(
        env_steps=report.env_steps,
        updates=report.updates,
        samples_trained=report.samples_trained,
        episodes=report.episodes,
        episode_return_mean=report.episode_return_mean,
        episode_return_std=report.episode_return_std,
        metrics=report.metrics,
        policy_lags=report.policy_lags,
    )


def report_from_proto(message: parameters_pb2.TrainingReport) -> TrainingReport:
    """Inverse of :func:`report_to_proto`."""
    has_mean, has_std = message.HasField("episode_return_mean"), message.HasField("episode_return_std")
    return TrainingReport(
        env_steps=message.env_steps,
        updates=message.updates,
        samples_trained=message.samples_trained,
        episodes=message.episodes,
        episode_return_mean=message.episode_return_mean if has_mean else None,
        episode_return_std=message.episode_return_std if has_std else None,
        metrics=dict(message.metrics),
        policy_lags=tuple(message.policy_lags),
    )


def accounts_to_proto(accounts: Iterable[LearnerAccount]) -> list[parameters_pb2.LearnerAccount]:
    """The learner's ledger."""
    return [
        parameters_pb2.LearnerAccount(
            sampler=identity_to_proto(account.sampler),
            settled_through=account.settled_through,
            trained=account.trained,
            dropped=account.dropped,
        )
        for account in accounts
    ]


def accounts_from_proto(messages: Iterable[parameters_pb2.LearnerAccount]) -> tuple[LearnerAccount, ...]:
    """Inverse of :func:`accounts_to_proto`."""
    return tuple(
        LearnerAccount(
            sampler=identity_from_proto(message.sampler),
            settled_through=message.settled_through,
            trained=message.trained,
            dropped=dict(message.dropped),
        )
        for message in messages
    )


def evaluation_to_proto(evaluation: Evaluation) -> parameters_pb2.Evaluation:
    """Result of an evaluation."""
    return parameters_pb2.Evaluation(
        version=version_to_proto(evaluation.version),
        return_mean=evaluation.return_mean,
        return_std=evaluation.return_std,
        episodes=evaluation.episodes,
        env_steps=evaluation.env_steps,
    )


def evaluation_from_proto(message: parameters_pb2.Evaluation) -> Evaluation:
    """Inverse of :func:`evaluation_to_proto`."""
    return Evaluation(
        version=version_from_proto(message.version),
        return_mean=message.return_mean,
        return_std=message.return_std,
        episodes=message.episodes,
        env_steps=message.env_steps,
    )


def view_to_proto(view: RunView) -> parameters_pb2.GetRunStateResponse:
    """A run at a glance."""
    return parameters_pb2.GetRunStateResponse(
        run_state=status_to_proto(view.status),
        report=None if view.report is None else report_to_proto(view.report),
        accounts=accounts_to_proto(view.accounts),
        best=None if view.best is None else evaluation_to_proto(view.best),
        checkpoint_problem=view.checkpoint_problem,
    )


def view_from_proto(message: parameters_pb2.GetRunStateResponse) -> RunView:
    """Inverse of :func:`view_to_proto`."""
    return RunView(
        status=status_from_proto(message.run_state),
        report=report_from_proto(message.report) if message.HasField("report") else None,
        accounts=accounts_from_proto(message.accounts),
        best=evaluation_from_proto(message.best) if message.HasField("best") else None,
        checkpoint_problem=message.checkpoint_problem,
    )
