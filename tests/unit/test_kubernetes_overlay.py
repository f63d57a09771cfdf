"""The overlay of a document names the images that its components take for granted."""

from __future__ import annotations

import pytest
from local_run import small_document

from headrace.config.sections import Config
from headrace.kubernetes.overlay import Choices, kustomization


@pytest.mark.parametrize(("device", "tag"), [("cpu", "1.2"), ("cuda", "1.2-gpu")])
def test_a_learner_with_a_gpu_has_an_image_of_its_own(device: str, tag: str) -> None:
    config = Config.model_validate(small_document(learner={"device": device}))
    document = kustomization("deploy/k8s", config, Choices("my-run", tag="1.2"))
    tags = {image["name"]: image["newTag"] for image in document["images"]}
    assert tags.pop("headrace/learner") == tag
    assert set(tags.values()) == {"1.2"}
