"""What manifests say to each other and to the code: ports, probes, variables, labels, volumes, security."""

from __future__ import annotations

import re
from pathlib import Path

from manifests import (
    WORKLOADS,
    Object,
    containers,
    document,
    environment,
    of_kind,
    pod,
    pod_labels,
    services_of_headrace,
    workloads,
)

from headrace import __version__
from headrace.config.process import _HELP, PREFIX, ProcessConfig

_IMAGES = {
    "paramserver": "paramserver",
    "relay": "paramserver",
    "learner": "learner",
    "sampler": "sampler",
    "evaluator": "sampler",
    "replay": "replay",
}
_GIVEN_SECRETS = {
    "headrace-tls",
    "headrace-token",
    "headrace-redis",
}  # docs/kubernetes.md says how to make them


def _ports(container: Object) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container.get("ports", ())}


def test_every_process_serves_where_its_ports_are(objects: list[Object]) -> None:
    for container in services_of_headrace(objects).values():
        settings, ports = environment(container), _ports(container)
        assert ports == {"grpc": 7000, "health": 7001, "metrics": 9100}
        assert settings["HEADRACE_LISTEN"] == f"0.0.0.0:{ports['grpc']}"
        assert settings["HEADRACE_ADVERTISE"] == f"$(POD_IP):{ports['grpc']}"
        assert settings["HEADRACE_HEALTH_PORT"] == str(ports["health"])
        assert settings["HEADRACE_METRICS_PORT"] == str(ports["metrics"])


def test_services_lead_to_ports_of_pods_they_select(objects: list[Object]) -> None:
    for service in of_kind(objects, "Service"):
        selector = service["spec"]["selector"]
        found = [w for w in workloads(objects).values() if selector.items() <= pod_labels(w).items()]
        assert len(found) == 1, service["metadata"]["name"]
        ports = {name: port for c in pod(found[0])["containers"] for name, port in _ports(c).items()}
        for port in service["spec"]["ports"]:
            assert port["port"] == ports[port["targetPort"]]


def test_addresses_name_services_and_their_ports(objects: list[Object]) -> None:
    there = {
        (service["metadata"]["name"], port["port"])
        for service in of_kind(objects, "Service")
        for port in service["spec"]["ports"]
    }
    for container in services_of_headrace(objects).values():
        for name in ("PARAMSERVER", "WATCH", "LEARNER", "REPLAY", "REDIS"):
            if text := environment(container).get(f"HEADRACE_{name}"):
                host, _, port = text.removeprefix("redis://").removesuffix("/0").rpartition(":")
                assert (host.rpartition(".")[2], int(port)) in there, text


def test_numbered_addresses_are_those_of_a_statefulset(objects: list[Object]) -> None:
    for container in services_of_headrace(objects).values():
        for name in ("LEARNER", "REPLAY"):
            if text := environment(container).get(f"HEADRACE_{name}"):
                service, kind = name.lower(), workloads(objects)[name.lower()]
                assert text == f"{service}-{{index}}.{service}:7000"
                assert kind["kind"] == "StatefulSet"
                assert kind["spec"]["serviceName"] == service


def test_statefulsets_have_their_headless_service(objects: list[Object]) -> None:
    headless = {
        s["metadata"]["name"] for s in of_kind(objects, "Service") if s["spec"].get("clusterIP") == "None"
    }
    assert {s["spec"]["serviceName"] for s in of_kind(objects, "StatefulSet")} <= headless


def test_probes_ask_the_health_port_for_what_it_knows(objects: list[Object]) -> None:
    for container in services_of_headrace(objects).values():
        asked = {kind: container[f"{kind}Probe"]["grpc"] for kind in ("startup", "readiness", "liveness")}
        assert asked == {
            "startup": {"port": 7001, "service": "liveness"},
            "readiness": {"port": 7001, "service": "readiness"},
            "liveness": {"port": 7001, "service": "liveness"},
        }


def test_liveness_is_patient(objects: list[Object]) -> None:
    for _, container in containers(objects):
        if probe := container.get("livenessProbe"):
            assert probe["periodSeconds"] * probe["failureThreshold"] >= 60
            start = container["startupProbe"]
            assert start["periodSeconds"] * start["failureThreshold"] >= 60


def test_every_variable_of_headrace_is_one_it_knows(objects: list[Object]) -> None:
    known = {PREFIX + name.upper() for name in _HELP}
    for name, container in containers(objects):
        said = {entry["name"] for entry in container.get("env", ()) if entry["name"].startswith(PREFIX)}
        assert said <= known, name


def test_every_process_takes_the_variables_of_its_container(objects: list[Object], tmp_path: Path) -> None:
    config = document(objects, tmp_path)
    for name, container in services_of_headrace(objects).items():
        variables = {
            "HEADRACE_CONFIG": str(tmp_path / "config.yaml"),
            "HEADRACE_RUN_ID": "a-run",
            "HEADRACE_POD": f"{name}-1",
            "HEADRACE_INDEX": f"{name}-1",  # as the StatefulSet's; a Deployment says a number
            "HEADRACE_REDIS": "redis://elsewhere:6379/0",
        }
        told = {**variables, **environment(container), "HEADRACE_CONFIG": variables["HEADRACE_CONFIG"]}
        told["HEADRACE_ADVERTISE"] = told["HEADRACE_ADVERTISE"].replace("$(POD_IP)", "10.0.0.1")
        place = ProcessConfig.from_args(_IMAGES[name], [], told)
        assert place.kind == name
        assert place.index == {"sampler": -1, "evaluator": 0, "relay": 0}.get(name, 1)
        if name == "sampler":
            assert len(place.learners) == config.learner.count
            assert len(place.sinks) == (config.replay.partitions if "replay" in workloads(objects) else 0)


def test_variables_refer_to_variables_before_them(objects: list[Object]) -> None:
    for name, container in containers(objects):
        before: set[str] = set()
        for entry in container.get("env", ()):
            assert set(re.findall(r"\$\((\w+)\)", entry.get("value", ""))) <= before, (name, entry)
            before.add(entry["name"])
        for argument in container.get("args", ()):
            assert set(re.findall(r"\$\((\w+)\)", argument)) <= before, (name, argument)


def test_images_are_those_of_this_version(objects: list[Object]) -> None:
    for name, container in containers(objects):
        expected = (
            _IMAGES[name]
            if container["name"] == "headrace"
            else {"redis": "redis"}.get(container["name"], "replay")
        )
        has_gpu = "nvidia.com/gpu" in container["resources"]["limits"]
        assert container["image"] == f"headrace/{expected}:{__version__}{'-gpu' if has_gpu else ''}"
        assert container["imagePullPolicy"] == "IfNotPresent"


def test_selectors_match_the_labels_of_pods_and_of_nobody_elses(objects: list[Object]) -> None:
    for name, workload in workloads(objects).items():
        selector = workload["spec"]["selector"]["matchLabels"]
        assert selector == {"app.kubernetes.io/name": "headrace", "app.kubernetes.io/component": name}
        assert pod_labels(workload) == {**selector, "app.kubernetes.io/part-of": "headrace"}
        assert workload["metadata"]["labels"].items() >= selector.items()


def test_constraints_and_budgets_are_about_pods_of_the_same_kind(objects: list[Object]) -> None:
    for name, workload in workloads(objects).items():
        own = pod_labels(workload)
        for constraint in pod(workload).get("topologySpreadConstraints", ()):
            assert constraint["labelSelector"]["matchLabels"].items() <= own.items(), name
        affinity = pod(workload).get("affinity", {}).get("podAntiAffinity", {})
        for term in affinity.get("preferredDuringSchedulingIgnoredDuringExecution", ()):
            assert term["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= own.items(), name
    for budget in of_kind(objects, "PodDisruptionBudget"):
        selector = budget["spec"]["selector"]["matchLabels"]
        assert selector["app.kubernetes.io/component"] == budget["metadata"]["name"]
        assert any(selector.items() <= pod_labels(w).items() for w in workloads(objects).values())


def test_no_budget_blocks_the_drain_of_a_node(objects: list[Object]) -> None:
    for budget in of_kind(objects, "PodDisruptionBudget"):
        assert "minAvailable" not in budget["spec"]
        assert budget["spec"]["maxUnavailable"] not in (0, "0%")


def test_everything_but_the_evaluator_has_a_budget(objects: list[Object]) -> None:
    budgets = {budget["metadata"]["name"] for budget in of_kind(objects, "PodDisruptionBudget")}
    assert budgets == set(workloads(objects)) - {"evaluator"}


def test_mounts_have_their_volumes_and_volumes_their_mounts(objects: list[Object]) -> None:
    for name, workload in workloads(objects).items():
        volumes = [volume["name"] for volume in pod(workload).get("volumes", ())]
        claims = [claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", ())]
        mounts = {m["name"] for c in pod(workload)["containers"] for m in c.get("volumeMounts", ())}
        assert sorted(volumes + claims) == sorted(mounts), name


def test_where_they_write_is_mounted(objects: list[Object]) -> None:
    for container in services_of_headrace(objects).values():
        mounted = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        folder, _, run = environment(container)["HEADRACE_RUN_DIR"].rpartition("/")
        assert (mounted, run) == ({folder, "/tmp"}, "$(HEADRACE_RUN_ID)")
        assert environment(container)["HEADRACE_CONFIG"] in {
            m["mountPath"] for m in container["volumeMounts"]
        }


def test_what_must_outlive_a_pod_is_on_a_claim(objects: list[Object]) -> None:
    claimed = {
        name for name, workload in workloads(objects).items() if workload["spec"].get("volumeClaimTemplates")
    }
    assert claimed == {"paramserver", "replay", "redis"} & set(workloads(objects))


def test_config_maps_and_secrets_exist_or_are_documented(objects: list[Object]) -> None:
    maps = {found["metadata"]["name"] for found in of_kind(objects, "ConfigMap")}
    secrets = {found["spec"]["secretName"] for found in of_kind(objects, "Certificate")} | _GIVEN_SECRETS
    for workload in workloads(objects).values():
        for volume in pod(workload).get("volumes", ()):
            assert volume.get("configMap", {}).get("name") in (maps | {None})
            assert volume.get("secret", {}).get("secretName") in (secrets | {None})
    for _, container in containers(objects):
        for entry in container.get("env", ()):
            source = entry.get("valueFrom", {})
            if key := source.get("configMapKeyRef"):
                found = next(m for m in of_kind(objects, "ConfigMap") if m["metadata"]["name"] == key["name"])
                assert key["key"] in found["data"]
            if key := source.get("secretKeyRef"):
                assert key["name"] in secrets


def test_a_changed_configuration_rolls_the_pods(objects: list[Object]) -> None:
    for found in of_kind(objects, "ConfigMap"):
        if not found["metadata"]["name"].startswith(
            "headrace-dashboard-"
        ):  # Grafana takes changes as they come
            assert re.fullmatch(
                r"headrace-(config|run|redis-cluster)-[a-z0-9]{10}", found["metadata"]["name"]
            )


def test_no_secret_is_written_down(objects: list[Object]) -> None:
    assert of_kind(objects, "Secret") == []


def test_pods_pass_the_restricted_level(objects: list[Object]) -> None:
    for workload in workloads(objects).values():
        spec = pod(workload)
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert (
            spec["securityContext"].items()
            >= {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "runAsGroup": 10001,
                "fsGroup": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            }.items()
        )
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        assert all({"configMap", "secret", "emptyDir"} & v.keys() for v in spec.get("volumes", ()))
    for _, container in containers(objects):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_every_container_has_requests_and_limits(objects: list[Object]) -> None:
    for name, container in containers(objects):
        for side in ("requests", "limits"):
            assert container["resources"][side].keys() >= {"cpu", "memory", "ephemeral-storage"}, name


def test_metrics_are_announced_where_they_are(objects: list[Object]) -> None:
    for name in services_of_headrace(objects):
        annotations = workloads(objects)[name]["spec"]["template"]["metadata"]["annotations"]
        assert annotations["prometheus.io/scrape"] == "true"
        assert annotations["prometheus.io/port"] == "9100"
        assert annotations["prometheus.io/path"] == "/metrics"


def test_replicas_are_the_autoscalers_alone(objects: list[Object]) -> None:
    for scaler in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]
        scaled = workloads(objects)[target["name"]]
        assert target["kind"] == scaled["kind"]
        assert "replicas" not in scaled["spec"]
        if scaler["kind"] == "HorizontalPodAutoscaler":
            names = {metric["containerResource"]["container"] for metric in scaler["spec"]["metrics"]}
            assert names <= {container["name"] for container in pod(scaled)["containers"]}


def test_new_samplers_work_before_old_ones_drain(objects: list[Object]) -> None:
    update = workloads(objects)["sampler"]["spec"]["strategy"]["rollingUpdate"]
    assert update == {"maxSurge": "25%", "maxUnavailable": 0}


def test_kinds_are_the_expected_ones(objects: list[Object]) -> None:
    sets = {"paramserver", "learner", "replay", "redis"}
    for name, workload in workloads(objects).items():
        assert workload["kind"] == ("StatefulSet" if name in sets else "Deployment")
        assert workload["kind"] in WORKLOADS
