"""What is written as YAML is read back equal, whatever a user's keyword arguments hold."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config.digest import config_digest, flatten
from headrace.config.document import format_yaml, parse_yaml
from headrace.config.load import config_from_document, dump_yaml

WORDS = st.one_of(st.text(), st.from_regex(r"[-+]?[0-9._]*([eE:x][-+]?[0-9]+)?", fullmatch=True))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), WORDS)
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3))
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(WORDS, VALUES, max_size=4))
def test_any_plain_document_is_read_back_equal(document: dict[str, Any]) -> None:
    assert parse_yaml(format_yaml(document), "test") == document


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(WORDS, VALUES, max_size=3))
def test_the_digest_survives_the_file(kwargs: dict[str, Any]) -> None:
    config = config_from_document(
        {"run": {"stop": {"updates": 1}}, "environment": {"id": "CartPole-v1", "kwargs": kwargs}}
    )
    again = config_from_document(parse_yaml(dump_yaml(config), "test"))
    assert config_digest(again) == config_digest(config)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text("ab", min_size=1), st.dictionaries(st.text("cd", min_size=1), st.integers())))
def test_flatten_keeps_every_leaf(document: dict[str, dict[str, int]]) -> None:
    leaves = flatten(document)
    assert sum(max(1, len(section)) for section in document.values()) == len(leaves)
