"""Manifests agree with the configuration document beside them, and documents with the presets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from manifests import (
    OVERLAYS,
    ROOT,
    Build,
    Object,
    document,
    environment,
    of_kind,
    pod,
    quantity,
    services_of_headrace,
    workloads,
)

from headrace.config.choices import is_off_policy, most_samplers, redis_max_memory_bytes
from headrace.config.load import load_config
from services.paramserver.assembly import SAVE_S

_MIB = 2**20
_REPLAY_DRAIN_S = 15.0
_GOODBYE_S = 2.0
_OWN_MEMORY = {"sampler": 300 * _MIB, "learner": 700 * _MIB, "replay": 200 * _MIB, "paramserver": 300 * _MIB}
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

# What a document for a cluster says differently from its preset.
_CHANGED = {
    "quickstart": ("cartpole-ppo", {"sampler.drain_s"}),
    "offpolicy": (
        "cartpole-dqn",
        {
            "sampler.drain_s", "sampler.count", "sampler.max_count", "replay.cold", "replay.partitions",
            "replay.cold_capacity_bytes",
        },
    ),
    "multi-learner": (
        "cartpole-impala",
        {"sampler.drain_s", "sampler.count", "sampler.max_count", "learner.count", "sync.mode"},
    ),
    "production": (
        "cartpole-appo",
        {
            "sampler.drain_s", "sampler.count", "sampler.max_count", "sampler.leveling", "learner.count",
            "learner.torch_threads", "learner.drain_s", "sync.mode", "paramserver.relays",
            "security.tls",
        },
    ),
}  # fmt: skip


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    return {k: v for key, part in value.items() for k, v in _flat(part, f"{path}.{key}".lstrip(".")).items()}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_document_differs_from_its_preset_in_what_is_listed(
    overlay: str, build: Build, tmp_path: Path
) -> None:
    preset, changed = _CHANGED[overlay]
    here = _flat(document(build((overlay, ())), tmp_path).model_dump())
    there = _flat(load_config(ROOT / "configs" / f"{preset}.yaml").model_dump())
    assert {key for key in here.keys() | there.keys() if here.get(key) != there.get(key)} == changed


def test_replicas_are_those_of_the_document(objects: list[Object], tmp_path: Path) -> None:
    config, found = document(objects, tmp_path), workloads(objects)
    assert found["paramserver"]["spec"]["replicas"] == 1
    assert found["learner"]["spec"]["replicas"] == config.learner.count
    if is_off_policy(config):
        assert found["replay"]["spec"]["replicas"] == config.replay.partitions


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_has_the_parts_that_its_document_asks_for(
    overlay: str, build: Build, tmp_path: Path
) -> None:
    objects = build((overlay, ()))
    config, found = document(objects, tmp_path), workloads(objects)
    assert ("replay" in found) == is_off_policy(config)
    assert ("evaluator" in found) == config.evaluation.enabled
    assert found.get("relay", {"spec": {"replicas": 0}})["spec"]["replicas"] == config.paramserver.relays


def test_every_learner_gets_a_sampler_and_no_more_come_than_the_run_takes(
    objects: list[Object], tmp_path: Path
) -> None:
    config = document(objects, tmp_path)
    least = most = workloads(objects)["sampler"]["spec"].get("replicas", 1)
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        least, most = scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]
    for scaler in of_kind(objects, "ScaledObject"):
        least, most = scaler["spec"]["minReplicaCount"], scaler["spec"]["maxReplicaCount"]
    assert (1 if is_off_policy(config) else config.learner.count) <= least
    assert least <= most <= most_samplers(config)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_usual_number_of_samplers_is_the_one_it_begins_with(
    overlay: str, build: Build, tmp_path: Path
) -> None:
    objects = build((overlay, ()))
    replicas = workloads(objects)["sampler"]["spec"].get("replicas", 1)
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        replicas = scaler["spec"]["minReplicas"]
    assert document(objects, tmp_path).sampler.count == replicas


def test_pods_have_the_time_to_drain(objects: list[Object], tmp_path: Path) -> None:
    config = document(objects, tmp_path)
    drains = {
        "sampler": config.sampler.drain_s,
        "learner": config.learner.drain_s,
        "paramserver": SAVE_S + _GOODBYE_S,
        "replay": _REPLAY_DRAIN_S,
        "evaluator": _GOODBYE_S,
        "relay": _GOODBYE_S,
    }
    for name, container in services_of_headrace(objects).items():
        command = container["lifecycle"]["preStop"]["exec"]["command"]
        assert command[0] == "sleep"
        assert (
            pod(workloads(objects)[name])["terminationGracePeriodSeconds"]
            > int(command[1]) + drains[name] + 5
        )


def test_memory_limits_hold_what_the_document_lets_them_keep(objects: list[Object], tmp_path: Path) -> None:
    config, services = document(objects, tmp_path), services_of_headrace(objects)
    held = {
        "sampler": config.replay.hot_capacity_bytes if is_off_policy(config) else 0,
        "learner": config.stream.capacity_bytes,
    }
    for name, own in _OWN_MEMORY.items():
        if name in services:
            limits = services[name]["resources"]["limits"]
            assert quantity(limits["memory"]) >= own + held.get(name, 0), name


def test_redis_may_hold_more_than_replay_will_store(objects: list[Object], tmp_path: Path) -> None:
    found = workloads(objects).get("redis")
    if found is None:
        return
    config = document(objects, tmp_path)
    container = next(c for c in pod(found)["containers"] if c["name"] == "redis")
    most = int(environment(container)["REDIS_MAXMEMORY"])
    assert most >= redis_max_memory_bytes(config.replay.cold_capacity_bytes)
    # Its append-only file is rewritten by a child that shares pages until they change.
    assert quantity(container["resources"]["limits"]["memory"]) >= 1.5 * most
    (claim,) = found["spec"]["volumeClaimTemplates"]
    assert quantity(claim["spec"]["resources"]["requests"]["storage"]) >= 3 * most


def test_threads_are_those_of_the_document(objects: list[Object], tmp_path: Path) -> None:
    config, services = document(objects, tmp_path), services_of_headrace(objects)
    for name, container in services.items():
        threads = {"learner": config.learner.torch_threads, "sampler": config.sampler.torch_threads}.get(
            name, 1
        )
        assert [environment(container)[variable] for variable in _THREADS] == [str(threads)] * len(_THREADS)


def test_no_cpu_limit_is_below_what_its_threads_can_use(objects: list[Object], tmp_path: Path) -> None:
    config = document(objects, tmp_path)
    for name, container in services_of_headrace(objects).items():
        threads = config.learner.torch_threads if name == "learner" else 1
        assert quantity(container["resources"]["limits"]["cpu"]) >= 1 + threads


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_volumes_go_with_runs_that_are_for_trying_out_and_stay_in_production(
    overlay: str, build: Build
) -> None:
    for found in of_kind(build((overlay, ())), "StatefulSet"):
        if found["spec"].get("volumeClaimTemplates"):
            expected = "Retain" if overlay == "production" else "Delete"
            assert found["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == expected
