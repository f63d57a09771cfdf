"""`headrace train --target kubernetes`: the overlay of a configuration, and a run followed to its end.

There is no cluster here. Manifests are built by the real kubectl; where something would be applied, a program
of that name takes the place of the cluster, and the run behind its port-forward is real.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from local_run import command, environment, small_document, write_document
from pods import Pods

IN_PLACE_OF_A_CLUSTER = """#!{python}
import os, signal, sys
words = sys.argv[1:]
with open(os.environ["CALLS"], "a") as calls:
    calls.write(" ".join(words) + "\\n")
if "apply" in words:
    print("statefulset.apps/paramserver created")
elif "port-forward" in words:
    print(f"Forwarding from 127.0.0.1:{{os.environ['PARAMSERVER_PORT']}} -> 7000", flush=True)
    signal.pause()
"""


def headrace(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env=environment() | variables, capture_output=True, text=True, timeout=240
    )


def objects(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(found["kind"], found["metadata"]["name"]): found for found in yaml.safe_load_all(text)}


@pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl isn't installed: it builds the manifests"
)
def test_rendering_gives_what_the_configuration_needs(tmp_path: Path) -> None:
    document = small_document(learner={"count": 2}, sampler={"count": 6}, evaluation={"enabled": True})
    folder = tmp_path / "my-run"
    done = headrace(
        "train", str(write_document(tmp_path, document)), "--target", "kubernetes", "--render",
        "--run-dir", str(folder), "--registry", "registry.example/team/", "--with", "network-policy",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = objects(done.stdout)
    kinds = {kind for kind, _ in made}
    assert made["StatefulSet", "learner"]["spec"]["replicas"] == 2
    assert made["Deployment", "sampler"]["spec"]["replicas"] == 6
    assert ("Deployment", "evaluator") in made
    assert ("StatefulSet", "replay") not in made
    assert "NetworkPolicy" in kinds
    container = made["StatefulSet", "learner"]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"].startswith("registry.example/team/headrace/learner:")
    configs = [found for (kind, name), found in made.items() if name.startswith("headrace-config")]
    assert yaml.safe_load(configs[0]["data"]["config.yaml"])["sampler"]["count"] == 6
    assert (folder / "kustomization.yaml").exists()


def test_what_makes_no_sense_is_refused_in_words(tmp_path: Path) -> None:
    config = str(write_document(tmp_path, small_document()))
    for arguments, words in (
        (["--target", "moon"], "--target: 'moon' is neither local nor kubernetes"),
        (["--render"], "--target: local takes no --render"),
        (["--target", "kubernetes", "--with", "nonsense"], "--with: there is no component 'nonsense'"),
        (["--target", "kubernetes", "--run-dir", str(tmp_path / "no run")], "--run-id: 'no run' must be"),
        (["--target", "kubernetes", "--run-dir", str(tmp_path)], "isn't empty"),
    ):
        done = headrace("train", config, *arguments)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_without_kubectl_that_is_said(tmp_path: Path) -> None:
    config = str(write_document(tmp_path, small_document()))
    done = headrace("train", config, "--target", "kubernetes", PATH=str(tmp_path))
    assert done.returncode == 2
    assert "needs `kubectl`" in done.stderr


@pytest.mark.slow
def test_a_run_on_a_cluster_is_followed_to_its_end(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(IN_PLACE_OF_A_CLUSTER.format(python=sys.executable), "utf-8")
    program.chmod(0o755)
    calls = tmp_path / "calls"
    with Pods(tmp_path / "pods", small_document(run={"stop": {"updates": 20}})) as pods:
        pods.stateful("paramserver")
        pods.stateful("learner")
        pods.sampler()
        done = headrace(
            "train", str(pods.document), "--target", "kubernetes", "--namespace", "rl",
            "--run-dir", str(tmp_path / "my-run"),
            PATH=f"{program.parent}{os.pathsep}{os.environ['PATH']}",
            CALLS=str(calls), PARAMSERVER_PORT=pods.port("paramserver"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "finished: run.stop.updates: 20 of 20 done" in done.stdout
        assert "balanced" in done.stdout
        assert f"kubectl --namespace rl delete -k {tmp_path / 'my-run'}" in done.stdout
    applied = [line for line in calls.read_text("utf-8").splitlines() if "apply" in line]
    assert applied == [f"--namespace rl apply -k {tmp_path / 'my-run'}"]
