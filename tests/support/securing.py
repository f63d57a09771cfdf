"""Credentials for tests: a folder as services are given it, and what becomes of it when it is renewed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace import certificates
from headrace.certificates import KeyPair
from headrace.credential_files import TOKEN_FILE
from headrace.rpc.credentials import Credentials, use_credentials

DAYS = 2


class Keeper:
    """Whoever keeps a folder of credentials: CA, certificate and token, all of which it can renew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = certificates.make_ca(DAYS)
        self.trusted = self.ca.certificate
        self.leaf = certificates.issue(self.ca, DAYS)
        self.write_tls()
        self.tokens = [certificates.make_token()]
        self.write_tokens()

    @property
    def token_file(self) -> Path:
        return self.folder / TOKEN_FILE

    def credentials(self, *, tls: bool = True, token: bool = True) -> Credentials:
        """They look at their files at every use."""
        return Credentials(self.folder if tls else None, self.token_file if token else None, look_s=0.0)

    def write_tls(self) -> None:
        certificates.write_tls(self.folder, self.trusted, self.leaf)

    def write_tokens(self) -> None:
        certificates.write_private(self.token_file, "\n".join([*self.tokens, ""]).encode())

    def copied_to(self, folder: Path) -> Credentials:
        """The credentials as they are now, for somebody who isn't told of new ones."""
        shutil.copytree(self.folder, folder)
        return Credentials(folder, folder / TOKEN_FILE)

    def trust(self, *authorities: KeyPair) -> None:
        self.trusted = b"".join(ca.certificate for ca in authorities)
        self.write_tls()

    def take_leaf_of(self, ca: KeyPair) -> None:
        self.leaf = certificates.issue(ca, DAYS)
        self.write_tls()


@contextmanager
def identity(credentials: Credentials) -> Iterator[Credentials]:
    """This process has ``credentials`` until the block is left."""
    before = use_credentials(credentials)
    try:
        yield credentials
    finally:
        use_credentials(before)
