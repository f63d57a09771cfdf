"""One published version with everything that belongs to it, and its manifest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace import __version__
from headrace.checkpoint.blob import Blob
from headrace.errors import CodecError
from headrace.sync.contribution import Contributor
from headrace.types import (
    Array,
    Evaluation,
    LearnerAccount,
    PolicyVersion,
    SamplerIdentity,
    TrainingReport,
)

FORMAT = 1
"""Version of the manifest's layout. A reader refuses a newer one."""

ACTING = "acting"
TRAINING = "training"


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """A version and all that must go with it: a run resumes from nothing else.

    ``acting`` holds network and normalizer, ``training`` optimizer, random state and counters (None:
    the learner sent none with this version). ``accounts`` is the learners' ledger with this version,
    ``contributors`` what of each learner's work is in it, where several hand in theirs.
    """

    version: PolicyVersion
    run_id: str
    config_digest: str
    config_json: str
    report: TrainingReport
    accounts: tuple[LearnerAccount, ...]
    acting: Blob
    training: Blob | None = None
    contributors: tuple[Contributor, ...] = ()

    def parameters(self) -> dict[str, Array]:
        """Network and normalizer, as arrays."""
        return self.acting.decode()

    def training_state(self) -> dict[str, Array] | None:
        """Optimizer, random state and counters, as arrays."""
        return None if self.training is None else self.training.decode()

    @property
    def blobs(self) -> dict[str, Blob]:
        """The blobs that are there, by name."""
        return {ACTING: self.acting} | ({} if self.training is None else {TRAINING: self.training})

    @property
    def nbytes(self) -> int:
        """Bytes of all blobs."""
        return sum(blob.nbytes for blob in self.blobs.values())

    def renumbered(self, version: PolicyVersion) -> VersionRecord:
        """The same content under another version."""
        return replace(self, version=version)


def to_manifest(record: VersionRecord) -> dict[str, Any]:
    """What a reader needs besides the blobs, JSON-able. ``blobs`` gives length and hash of each."""
    return {
        "format": FORMAT,
        "headrace": __version__,
        "run_id": record.run_id,
        "version": asdict(record.version),
        "config_digest": record.config_digest,
        "config": record.config_json,
        "report": _report_to_json(record.report),
        "accounts": [_account_to_json(account) for account in record.accounts],
        "contributors": [asdict(contributor) for contributor in record.contributors],
        "blobs": {
            name: {"nbytes": blob.nbytes, "sha256": blob.sha256} for name, blob in record.blobs.items()
        },
    }


def from_manifest(manifest: Mapping[str, Any], blobs: Mapping[str, bytes]) -> VersionRecord:
    """Put a record together again. Raises CodecError if a blob is missing or its hash is wrong."""
    try:
        if int(manifest["format"]) > FORMAT:
            raise CodecError(f"written by a newer Headrace (format {manifest['format']}, known: {FORMAT})")
        checked = {
            name: _checked(name, blobs.get(name), expected) for name, expected in manifest["blobs"].items()
        }
        return VersionRecord(
            version=version_from_json(manifest["version"]),
            run_id=str(manifest["run_id"]),
            config_digest=str(manifest["config_digest"]),
            config_json=str(manifest["config"]),
            report=_report_from_json(manifest["report"]),
            accounts=tuple(_account_from_json(account) for account in manifest["accounts"]),
            acting=checked[ACTING],
            training=checked.get(TRAINING),
            contributors=tuple(
                Contributor(str(raw["learner_id"]), int(raw["incarnation"]), int(raw["sequence"]))
                for raw in manifest.get("contributors", ())
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CodecError(f"not a checkpoint manifest: {error!r}") from error


def evaluation_to_json(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation, JSON-able."""
    return asdict(evaluation)


def evaluation_from_json(raw: Mapping[str, Any]) -> Evaluation:
    """Inverse of :func:`evaluation_to_json`; KeyError, TypeError or ValueError on anything else."""
    return Evaluation(
        version=version_from_json(raw["version"]),
        return_mean=float(raw["return_mean"]),
        return_std=float(raw["return_std"]),
        episodes=int(raw["episodes"]),
        env_steps=int(raw["env_steps"]),
    )


def version_from_json(raw: Mapping[str, Any]) -> PolicyVersion:
    """Read ``{"epoch", "number"}``."""
    return PolicyVersion(epoch=int(raw["epoch"]), number=int(raw["number"]))


def _checked(name: str, data: bytes | None, expected: Mapping[str, Any]) -> Blob:
    if data is None:
        raise CodecError(f"blob {name!r} is missing")
    blob = Blob.of(data)
    if blob.nbytes != int(expected["nbytes"]) or blob.sha256 != expected["sha256"]:
        raise CodecError(
            f"blob {name!r} was altered: {blob.nbytes} bytes with sha256 {blob.sha256[:12]}..., "
            f"expected {expected['nbytes']} with {str(expected['sha256'])[:12]}..."
        )
    return blob


def _report_to_json(report: TrainingReport) -> dict[str, Any]:
    raw = asdict(report)
    raw["metrics"] = {name: _finite_or_none(value) for name, value in report.metrics.items()}
    raw["episode_return_mean"] = _finite_or_none(report.episode_return_mean)
    raw["episode_return_std"] = _finite_or_none(report.episode_return_std)
    return raw


def _report_from_json(raw: Mapping[str, Any]) -> TrainingReport:
    return TrainingReport(
        env_steps=int(raw["env_steps"]),
        updates=int(raw["updates"]),
        samples_trained=int(raw["samples_trained"]),
        episodes=int(raw["episodes"]),
        episode_return_mean=_float_or_none(raw["episode_return_mean"]),
        episode_return_std=_float_or_none(raw["episode_return_std"]),
        metrics={str(k): math.nan if v is None else float(v) for k, v in raw["metrics"].items()},
        policy_lags=tuple(int(lag) for lag in raw["policy_lags"]),
    )


def _account_to_json(account: LearnerAccount) -> dict[str, Any]:
    return {
        "sampler_id": account.sampler.sampler_id,
        "incarnation": account.sampler.incarnation,
        "settled_through": account.settled_through,
        "trained": account.trained,
        "dropped": dict(account.dropped),
    }


def _account_from_json(raw: Mapping[str, Any]) -> LearnerAccount:
    return LearnerAccount(
        sampler=SamplerIdentity(str(raw["sampler_id"]), int(raw["incarnation"])),
        settled_through=int(raw["settled_through"]),
        trained=int(raw["trained"]),
        dropped={str(reason): int(count) for reason, count in raw["dropped"].items()},
    )


def _finite_or_none(value: float | None) -> float | None:
    """JSON knows no NaN."""
    return float(value) if value is not None and math.isfinite(value) else None


def _float_or_none(value: Any) -> float | None:
    return None if value is None else float(value)
