"""``headrace certs``: a CA, a certificate and a token, as files and as manifests of Kubernetes Secrets."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import typer
import yaml

from headrace import certificates
from headrace.certificates import KeyPair
from headrace.credential_files import CA_FILE, TOKEN_FILE, read_tls, read_tokens
from headrace.errors import ConfigurationError

CA_KEY_FILE = "ca.key"
TLS_MANIFEST, TOKEN_MANIFEST = "headrace-tls.yaml", "headrace-token.yaml"


def run_certs(folder: Path, *, days: int, renew: bool, kubernetes: bool) -> None:
    """Make everything anew, or a new certificate of the CA that is there.

    ConfigurationError: there is something already (or nothing to renew), or it can't be written.
    """
    try:
        if renew:
            _renew(folder, days)
        else:
            _make(folder, days)
        if kubernetes:
            _write_manifests(folder)
    except OSError as error:
        raise ConfigurationError([f"DIR: {folder}: {error.strerror or error}."]) from error
    _tell(folder, kubernetes=kubernetes)


def _make(folder: Path, days: int) -> None:
    names = (CA_FILE, CA_KEY_FILE, "tls.crt", "tls.key", TOKEN_FILE, TLS_MANIFEST, TOKEN_MANIFEST)
    if found := [name for name in names if (folder / name).exists()]:
        raise ConfigurationError(
            [f"DIR: {folder} already holds {', '.join(found)}; nothing is overwritten (see --renew)."]
        )
    ca = certificates.make_ca()
    certificates.write_tls(folder, ca.certificate, certificates.issue(ca, days))
    certificates.write_private(folder / CA_KEY_FILE, ca.key)
    certificates.write_private(folder / TOKEN_FILE, certificates.make_token().encode() + b"\n")


def _renew(folder: Path, days: int) -> None:
    missing = [name for name in (CA_FILE, CA_KEY_FILE) if not (folder / name).exists()]
    if missing:
        raise ConfigurationError(
            [f"DIR: {folder} holds no {' and no '.join(missing)}: there is no CA to renew from."]
        )
    ca = KeyPair((folder / CA_FILE).read_bytes(), (folder / CA_KEY_FILE).read_bytes())
    certificates.write_tls(folder, ca.certificate, certificates.issue(ca, days))


def _write_manifests(folder: Path) -> None:
    """Secrets as the services mount them. The CA's key stays out: no cluster needs it."""
    tls, (first, *more) = read_tls(folder), read_tokens(folder / TOKEN_FILE)
    data = {"ca.crt": tls.ca, "tls.crt": tls.certificate, "tls.key": tls.key}
    tokens = "\n".join([first, *more, ""]).encode()
    _write_secret(folder / TLS_MANIFEST, "headrace-tls", "kubernetes.io/tls", data)
    _write_secret(folder / TOKEN_MANIFEST, "headrace-token", "Opaque", {"token": tokens})


def _write_secret(path: Path, name: str, kind: str, data: dict[str, bytes]) -> None:
    labels = {"app.kubernetes.io/name": "headrace", "app.kubernetes.io/part-of": "headrace"}
    secret: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": labels},
        "type": kind,
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }
    certificates.write_private(path, yaml.safe_dump(secret, sort_keys=False).encode())


def _tell(folder: Path, *, kubernetes: bool) -> None:
    lines = [
        ("--tls", f"{folder}  (HEADRACE_TLS)"),
        ("--token-file", f"{folder / TOKEN_FILE}  (HEADRACE_TOKEN_FILE)"),
        (
            "keep secret",
            f"{folder / CA_KEY_FILE}  whoever has it can issue certificates; services don't need it",
        ),
    ]
    if kubernetes:
        lines.append(("apply", f"kubectl apply -f {folder / TLS_MANIFEST} -f {folder / TOKEN_MANIFEST}"))
    for name, value in lines:
        typer.echo(f"{name:>14}  {value}")
