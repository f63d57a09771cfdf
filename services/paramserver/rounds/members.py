"""A learner that takes part in rounds, as the parameter server knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.checkpoint import Blob
from headrace.sync.aggregation import FlatArray
from headrace.sync.contribution import RoundResult
from headrace.types import PolicyVersion
from headrace.v1 import parameters_pb2
from services.paramserver.rounds.judging import Verdict
from services.paramserver.rounds.model import Part


@dataclass(frozen=True, slots=True)
class Answer:
    """What a learner is told, and of vector and state of the newest version what it does not have."""

    result: RoundResult
    blobs: Mapping[parameters_pb2.BlobKind, Blob]


@dataclass(slots=True, eq=False)
class Member:
    """A learner that is here. ``given``: the values of the version it goes on from."""

    learner_id: str
    incarnation: int
    given: FlatArray
    base: PolicyVersion
    part: Part | None = None
    verdict: Verdict | None = None
    answer: Answer | None = None
