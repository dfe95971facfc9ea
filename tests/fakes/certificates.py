"""Self-signed certificates and keys as PEM files, for tests that serve HTTPS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path) -> dict[str, str]:
        """Write `cert.pem` and `key.pem` in `folder`, as a renewal does, and return the value of `server.http.tls`."""
        for name, data, mode in (("cert.pem", self.certificate, 0o644), ("key.pem", self.key, 0o600)):
            written = folder / f"{name}.new"
            written.write_bytes(data)
            written.chmod(mode)
            written.rename(folder / name)
        return {"certificate": "cert.pem", "key": "key.pem"}

    @property
    def der(self) -> bytes:
        """The certificate as a TLS client receives it."""
        return ssl.PEM_cert_to_DER_cert(self.certificate.decode())

    def trusted(self) -> ssl.SSLContext:
        """Return the TLS context of a client that trusts this certificate."""
        return ssl.create_default_context(cadata=self.certificate.decode())


def make_pair(*, name: str = "localhost", days: float = 30, age_days: float = 1, password: str | None = None) -> Pair:
    """Return a certificate for `name` and this machine's loopback address that began `age_days` ago and expires in `days`."""
    key = generate_private_key(SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=age_days)).not_valid_after(now + timedelta(days=days))
    signed = builder.add_extension(names, critical=False).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    encryption = BestAvailableEncryption(password.encode()) if password is not None else NoEncryption()
    return Pair(
        signed.sign(key, SHA256()).public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    )


def make_signed(authority: Pair, *, name: str = "localhost") -> Pair:
    """Return a certificate for `name` and this machine's loopback address that `authority` signed and that can sign none itself."""
    key = generate_private_key(SECP256R1())
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signing_key = load_pem_private_key(authority.key, None)
    assert isinstance(signing_key, EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ip_address("127.0.0.1"))])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"leaf of {name}")])
    builder = x509.CertificateBuilder(signer.subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=30))
    signed = builder.add_extension(names, critical=False).sign(signing_key, SHA256())
    return Pair(
        signed.public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
