"""The overlay of a document: images, threads, memory and time to drain that go with it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from local_run import small_document

from headrace.config.sections import Config
from headrace.kubernetes.overlay import (
    _LEARNER_GRACE_S,
    _SAMPLER_GRACE_S,
    Choices,
    kustomization,
    manifests,
)


@pytest.mark.parametrize(("device", "tag"), [("cpu", "1.2"), ("cuda", "1.2-gpu")])
def test_a_learner_with_a_gpu_has_an_image_of_its_own(device: str, tag: str) -> None:
    config = Config.model_validate(small_document(learner={"device": device}))
    document = kustomization("deploy/k8s", config, Choices("my-run", tag="1.2"))
    tags = {image["name"]: image["newTag"] for image in document["images"]}
    assert tags.pop("headrace/learner") == tag
    assert set(tags.values()) == {"1.2"}


def patches(algorithm: dict[str, Any] | None = None, **sections: Any) -> dict[str, dict[str, Any]]:
    document = small_document(**sections)
    config = Config.model_validate(document | ({"algorithm": algorithm} if algorithm else {}))
    made = kustomization("deploy/k8s", config, Choices("my-run"))["patches"]
    found = [yaml.safe_load(patch["patch"]) for patch in made]
    return {patch["metadata"]["name"]: patch["spec"]["template"]["spec"] for patch in found}


def test_what_fits_the_manifests_is_left_as_it_is() -> None:
    assert patches() == {}


def test_a_learner_of_several_threads_has_cores_for_them() -> None:
    (container,) = patches(learner={"torch_threads": 3})["learner"]["containers"]
    assert {entry["value"] for entry in container["env"]} == {"3"}
    assert container["resources"]["requests"]["cpu"] == "4"


def test_a_long_drain_has_the_time_it_may_take() -> None:
    made = patches(sampler={"drain_s": 200.0}, learner={"drain_s": 55.5})
    assert made["sampler"]["terminationGracePeriodSeconds"] == 210
    assert made["learner"]["terminationGracePeriodSeconds"] == 66


def test_redis_has_room_for_the_cold_tier() -> None:
    made = patches(algorithm={"name": "dqn"}, replay={"cold_capacity_bytes": 4 * 2**30})
    (container,) = made["redis"]["containers"]
    assert int(container["env"][0]["value"]) > 4 * 2**30
    assert int(container["resources"]["limits"]["memory"]) > int(container["env"][0]["value"])


@pytest.mark.parametrize(("section", "tag"), [({}, "1.2"), ({"network": "cnn"}, "1.2-torch")])
def test_samplers_that_compute_by_torch_have_an_image_with_it(section: dict[str, Any], tag: str) -> None:
    config = Config.model_validate(small_document(policy=section))
    images = kustomization("deploy/k8s", config, Choices("my-run", tag="1.2"))["images"]
    assert {"headrace/sampler": tag}.items() <= {i["name"]: i["newTag"] for i in images}.items()


@pytest.mark.parametrize(
    ("service", "grace_s"), [("sampler", _SAMPLER_GRACE_S), ("learner", _LEARNER_GRACE_S)]
)
def test_the_times_are_those_of_the_manifests(service: str, grace_s: float) -> None:
    text = (manifests() / "services" / service / f"{service}.yaml").read_text("utf-8")
    assert f"terminationGracePeriodSeconds: {grace_s:.0f}\n" in text
