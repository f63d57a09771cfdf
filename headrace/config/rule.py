"""A rule between fields that a configuration breaks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """One broken rule: the sentence, and the dotted paths that it reads."""

    sentence: str
    reads: frozenset[str]


def problem(sentence: str, *reads: str) -> RuleProblem:
    """A sentence that begins with the path it is about, and what else it reads."""
    return RuleProblem(sentence, frozenset({sentence.partition(":")[0], *reads}))
