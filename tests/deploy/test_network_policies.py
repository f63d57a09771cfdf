"""With network policies, who may talk to whom is exactly what the services need."""

from __future__ import annotations

from typing import Any

import pytest
from manifests import Build, Object, of_kind, pod_labels, workloads

GRPC, REDIS, BUS = 7000, 6379, 16379
ANY = -1

ARROWS = {
    *((peer, "paramserver", GRPC) for peer in ("sampler", "learner", "replay", "evaluator", "relay")),
    *((peer, "relay", GRPC) for peer in ("sampler", "evaluator", "relay")),
    ("sampler", "learner", GRPC),
    ("sampler", "replay", GRPC),
    ("learner", "sampler", GRPC),
    ("learner", "replay", GRPC),
    ("learner", "learner", ANY),  # torch.distributed chooses ports
    ("replay", "replay", GRPC),
    ("replay", "redis", REDIS),
    ("redis", "redis", REDIS),
    ("redis", "redis", BUS),
}
_KINDS = ("paramserver", "relay", "learner", "sampler", "replay", "redis", "evaluator")
_CASES = [("quickstart", ("tls", "token", "network-policy")), ("production", ())]


@pytest.fixture(params=_CASES, ids=["component", "production"])
def policies(request: pytest.FixtureRequest, build: Build) -> list[Object]:
    return of_kind(build(request.param), "NetworkPolicy")


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    wanted = selector.get("matchLabels", {})
    terms = selector.get("matchExpressions", ())
    assert all(term["operator"] == "In" for term in terms)
    return wanted.items() <= labels.items() and all(labels.get(t["key"]) in t["values"] for t in terms)


def _labels(kind: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "headrace", "app.kubernetes.io/component": kind}


def _allowed(policies: list[Object], direction: str) -> set[tuple[str, str, int]]:
    """(from, to, port) that one side allows, between parts of the run."""
    rules, peers = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
    found = set()
    for policy in policies:
        own = [kind for kind in _KINDS if _selects(policy["spec"]["podSelector"], _labels(kind))]
        for rule in policy["spec"].get(rules, ()):
            for peer in rule.get(peers, ()):
                if "podSelector" not in peer:
                    continue
                others = [kind for kind in _KINDS if _selects(peer["podSelector"], _labels(kind))]
                ports = [port["port"] for port in rule.get("ports", ())] or [ANY]
                ways = {(a, b, port) for a in others for b in own for port in ports}
                found |= ways if direction == "Ingress" else {(b, a, port) for a, b, port in ways}
    return found


@pytest.mark.parametrize("direction", ["Ingress", "Egress"])
def test_each_side_allows_exactly_the_arrows(policies: list[Object], direction: str) -> None:
    assert _allowed(policies, direction) == ARROWS


def test_everything_else_is_denied(policies: list[Object], build: Build) -> None:
    (deny,) = [p for p in policies if p["metadata"]["name"] == "headrace-default-deny"]
    assert deny["spec"].keys() == {"podSelector", "policyTypes"}
    assert set(deny["spec"]["policyTypes"]) == {"Ingress", "Egress"}
    for workload in workloads(build(("offpolicy", ("tls", "token", "network-policy")))).values():
        assert _selects(deny["spec"]["podSelector"], pod_labels(workload))


def test_a_rule_counts_in_its_policy(policies: list[Object]) -> None:
    for policy in policies:
        for direction in ("Ingress", "Egress"):
            if direction.lower() in policy["spec"]:
                assert direction in policy["spec"]["policyTypes"]


def test_all_may_ask_dns_and_prometheus_may_ask_all(policies: list[Object]) -> None:
    by_name = {policy["metadata"]["name"]: policy["spec"] for policy in policies}
    (dns,) = by_name["headrace-dns"]["egress"]
    assert {(port["port"], port["protocol"]) for port in dns["ports"]} == {(53, "UDP"), (53, "TCP")}
    (metrics,) = by_name["headrace-metrics"]["ingress"]
    assert [port["port"] for port in metrics["ports"]] == [9100]
    assert metrics["from"][0].keys() == {"namespaceSelector"}
    for name in ("headrace-dns", "headrace-metrics"):
        assert all(_selects(by_name[name]["podSelector"], _labels(kind)) for kind in _KINDS)
