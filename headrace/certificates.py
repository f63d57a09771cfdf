"""Makes what mutual TLS and the bearer token need: a CA, certificates, keys, a token.

Only the launcher and ``headrace certs`` make any; services just read them, so nothing else imports this
module, nor the ``cryptography`` package, which is imported where it is used.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.credential_files import CA_FILE, CERTIFICATE_FILE, KEY_FILE, PEER_NAME
from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, Name

CA_DAYS = 3650
"""Days that a CA is valid."""
_CA_NAME = "Headrace CA"
_SKEW = timedelta(minutes=10)  # clocks of two machines may differ by so much
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def make_ca(days: int = CA_DAYS) -> KeyPair:
    """A CA of its own, valid for ``days`` from now."""
    from cryptography import x509

    key = _new_key()
    name = _name(f"{_CA_NAME} {secrets.token_hex(4)}")  # two CAs in one bundle must be told apart
    builder = (
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _signed(builder, key, key)


def issue(ca: KeyPair, days: int) -> KeyPair:
    """A certificate for all processes of a run, at both ends of a connection, valid for ``days`` from now.

    It carries the name that clients demand, whatever address they connect to. It ends with its CA at the
    latest. ConfigurationError: ``ca`` isn't a CA's certificate with its key, or has expired.
    """
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority, ca_key = _read_ca(ca)
    key = _new_key()
    names: list[x509.GeneralName] = [x509.DNSName(PEER_NAME), x509.DNSName("localhost")]
    names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    both_ends = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _builder(_name(PEER_NAME), authority.subject, key, days, ends_with=authority.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both_ends), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )
    return _signed(builder, key, ca_key)


def make_token() -> str:
    """A token nobody can guess: 256 random bits, as text."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def write_tls(folder: Path, ca_certificate: bytes, pair: KeyPair) -> None:
    """Write the three files that ``--tls`` takes into ``folder``, each at once, for this user only."""
    make_private_folder(folder)
    write_private(folder / CA_FILE, ca_certificate)
    write_private(folder / KEY_FILE, pair.key)
    write_private(folder / CERTIFICATE_FILE, pair.certificate)


def make_private_folder(folder: Path) -> None:
    """Make ``folder``, and what is missing above it, for this user only."""
    if not folder.parent.exists():
        make_private_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, data: bytes) -> None:
    """Write ``data``, readable by this user only; whoever reads finds the old file or the whole new one."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name(common_name: str) -> Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: Name, issuer: Name, key: EllipticCurvePrivateKey, days: int, *, ends_with: datetime | None = None
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(end if ends_with is None else min(end, ends_with))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(
    builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey, signer: EllipticCurvePrivateKey
) -> KeyPair:
    from cryptography.hazmat.primitives import hashes, serialization

    certificate = builder.sign(signer, hashes.SHA256())
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _read_ca(ca: KeyPair) -> tuple[Certificate, EllipticCurvePrivateKey]:
    """The CA whose key this is; of a bundle, the one that fits the key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_pem_private_key(ca.key, None)
        candidates = x509.load_pem_x509_certificates(ca.certificate)
    except (ValueError, TypeError) as error:
        raise ConfigurationError([f"the CA can't be read: {error}"]) from error
    fitting = [found for found in candidates if found.public_key() == key.public_key()]
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not fitting:
        raise ConfigurationError(["the CA's key is not the one of its certificate"])
    if fitting[0].not_valid_after_utc <= datetime.now(UTC):
        raise ConfigurationError([f"the CA has expired on {fitting[0].not_valid_after_utc:%Y-%m-%d}"])
    return fitting[0], key
