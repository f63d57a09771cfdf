"""The files that hold a process's credentials: their names, what makes them valid, when they have changed.

``--tls DIR`` holds ``ca.crt`` (one CA or a bundle), ``tls.crt`` and ``tls.key``, all PEM, as in a Kubernetes
Secret of type ``kubernetes.io/tls``. ``--token-file F`` holds tokens, one a line: the first one is sent,
each of them is accepted.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ConfigurationError

CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.crt", "tls.crt", "tls.key"
TOKEN_FILE = "token"
PEER_NAME = "headrace"
"""DNS name in every certificate; clients demand it, whatever address they connect to."""
MIN_TOKEN_LENGTH = 16
MAX_TOKEN_LENGTH = 1024
MAX_TOKENS = 8
_MAX_FILE_BYTES = 2**20
_ATTEMPTS = 3

Stamp = tuple[tuple[int, int, int, int], ...]
"""Device, inode, size and time of change of each file."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Content of the three files, PEM; ``key`` belongs to ``certificate``."""

    ca: bytes
    certificate: bytes
    key: bytes


def tls_paths(folder: Path) -> tuple[Path, Path, Path]:
    """CA, certificate and key in ``folder``."""
    return folder / CA_FILE, folder / CERTIFICATE_FILE, folder / KEY_FILE


def stamp(*paths: Path) -> Stamp | None:
    """What changes when a file does, also behind a symbolic link; None if one isn't there."""
    try:
        found = [path.stat() for path in paths]
    except OSError:
        return None
    return tuple((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in found)


def read_tls(folder: Path) -> TlsFiles:
    """Read the three files as they belong together, also while somebody replaces them.

    Raises:
        ConfigurationError: one is missing, can't be read, is no PEM, or the key isn't the certificate's.
    """
    paths = tls_paths(folder)
    problem = ""
    for _attempt in range(_ATTEMPTS):
        before = stamp(*paths)
        contents = [_read(path, "--tls") for path in paths]
        problem = _tls_problem(*paths)
        if before is not None and before == stamp(*paths):
            break
    if problem:
        raise ConfigurationError([f"--tls: {problem}"])
    return TlsFiles(*contents)


def read_tokens(path: Path) -> tuple[str, ...]:
    """The tokens in ``path``, the one to send first.

    Raises:
        ConfigurationError: it can't be read, is empty, or a line is no token.
    """
    lines = [line.strip() for line in _read(path, "--token-file").split(b"\n")]
    tokens = [line for line in lines if line]
    problems = [
        f"--token-file: line {number} of {path} is not a token: {MIN_TOKEN_LENGTH} to {MAX_TOKEN_LENGTH} "
        "letters, digits and punctuation of ASCII, without spaces."
        for number, line in enumerate(lines, 1)
        if line and not _is_token(line)
    ]
    if not tokens:
        problems.append(f"--token-file: {path} holds no token.")
    if len(tokens) > MAX_TOKENS:
        problems.append(f"--token-file: {path} holds {len(tokens)} tokens; the most is {MAX_TOKENS}.")
    if problems:
        raise ConfigurationError(problems)
    return tuple(token.decode("ascii") for token in tokens)


def _read(path: Path, flag: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError([f"{flag}: {path} can't be read: {error.strerror or error}."]) from error
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigurationError([f"{flag}: {path} is larger than {_MAX_FILE_BYTES} bytes."])
    return data


def _tls_problem(ca: Path, certificate: Path, key: Path) -> str:
    """What is wrong with the files, in a sentence; empty: nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=str(ca))
    except (ssl.SSLError, OSError) as error:
        return f"{ca} holds no CA certificate (PEM): {error}."
    try:
        context.load_cert_chain(str(certificate), str(key))
    except (ssl.SSLError, OSError) as error:
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            return f"{key} is not the key of {certificate}."
        return f"{certificate} and {key} are not a certificate and its key (PEM): {error}."
    return ""


def _is_token(line: bytes) -> bool:
    return MIN_TOKEN_LENGTH <= len(line) <= MAX_TOKEN_LENGTH and all(33 <= byte <= 126 for byte in line)
