"""The manifests, each combination built once."""

from __future__ import annotations

import shutil

import pytest
from manifests import COMBINATIONS, MANIFESTS, Build, Case, Object, name_of, with_components


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build a combination; every one is built once a session."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl isn't on the path: manifests can't be built")
    tree = tmp_path_factory.mktemp("manifests") / "k8s"
    shutil.copytree(MANIFESTS, tree)
    built: dict[Case, list[Object]] = {}

    def make(case: Case) -> list[Object]:
        if case not in built:
            built[case] = with_components(tree, *case)
        return built[case]

    return make


@pytest.fixture(params=COMBINATIONS, ids=name_of)
def objects(request: pytest.FixtureRequest, build: Build) -> list[Object]:
    """All objects of a combination of overlay and components."""
    return build(request.param)
