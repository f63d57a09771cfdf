"""The credentials of a local run: made anew at each start, in the run's folder, for this user only."""

from __future__ import annotations

from pathlib import Path

from headrace.config.sections import Config
from headrace.credential_files import TOKEN_FILE
from headrace.errors import ConfigurationError
from headrace.local.run_folder import RunFolder
from headrace.rpc.credentials import Credentials

_DAYS = 365  # a local run that lasts longer is resumed before


def make_credentials(config: Config, folder: RunFolder) -> None:
    """Write what the configuration demands. The CA's key is forgotten: nobody can issue more.

    ConfigurationError: the files can't be written.
    """
    try:
        _write(config, folder)
    except OSError as error:
        raise ConfigurationError([f"--run-dir: credentials can't be written: {error}"]) from error


def _write(config: Config, folder: RunFolder) -> None:
    from headrace import certificates

    if config.security.tls == "mutual":
        ca = certificates.make_ca(_DAYS)
        certificates.write_tls(folder.tls, ca.certificate, certificates.issue(ca, _DAYS))
    if config.security.token == "required":
        certificates.make_private_folder(folder.security)
        certificates.write_private(_token_file(folder), certificates.make_token().encode() + b"\n")


def credentials_of(config: Config, folder: RunFolder) -> Credentials:
    """Those of the run, for a client of its paramserver. ConfigurationError: they aren't there."""
    return Credentials(*_paths(config, folder))


def security_flags(config: Config, folder: RunFolder) -> dict[str, str]:
    """What each process of the run is told; empty values win over variables that somebody has set."""
    tls, token_file = _paths(config, folder)
    return {
        "--tls": "" if tls is None else str(tls.resolve()),
        "--token-file": "" if token_file is None else str(token_file.resolve()),
    }


def _paths(config: Config, folder: RunFolder) -> tuple[Path | None, Path | None]:
    return (
        folder.tls if config.security.tls == "mutual" else None,
        _token_file(folder) if config.security.token == "required" else None,
    )


def _token_file(folder: RunFolder) -> Path:
    return folder.security / TOKEN_FILE
