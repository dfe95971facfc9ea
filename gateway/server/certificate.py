"""`ServerCertificate`: the certificate and key with which the gateway serves HTTPS, read again when their files change. Used by `Gateway`.

Connections ask for the TLS context when they begin, so a renewed certificate applies to new connections, and open ones go on. A TLS context
is never changed: each reading of the files makes a new one, so files that do not fit together leave the current context as it is.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from gateway.config.watch import Signature, signature_of
from gateway.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

    from gateway.config.models import TlsSettings

logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0
"""Seconds between two checks of the files. A change applies after it has been the same for two checks, because two files are replaced."""

EXPIRY_NOTE_DAYS = 14
"""Number of days before its expiry from which on a certificate counts as a problem."""

_CERTIFICATE, _KEY = "server.http.tls.certificate", "server.http.tls.key"


class ServerCertificate:
    """The gateway's certificate. `context` has the TLS context of new connections."""

    def __init__(self, settings: TlsSettings) -> None:
        """Read certificate and key. Blocks.

        Raises:
            ConfigError: A file cannot be read, they do not belong together, or the certificate is not valid now. The message names
                the file.
        """
        self._settings = settings
        self._wanted = anyio.Event()
        self._seen = self._signatures()
        self._failure: str | None = None
        self._context, self._expires = _load(settings)
        self._key_notes = key_notes(settings)

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a new connection."""
        return self._context

    def problems(self) -> list[str]:
        """Return a text for each problem: unusable renewed files, a certificate that expires soon, a key that others can read."""
        return [*([self._failure] if self._failure else []), *expiry_notes(self._settings, self._expires), *self._key_notes]

    @property
    def expires(self) -> datetime:
        """The moment at which the certificate in use expires, in UTC."""
        return self._expires

    def read_again(self) -> None:
        """Let `follow` read the files now, even if they seem unchanged. Returns at once."""
        self._wanted.set()

    async def follow(self) -> None:
        """Read the files again when they change and when `read_again` was called. Runs until it is cancelled."""
        before = self._seen
        while True:
            with anyio.move_on_after(POLL_SECONDS):
                await self._wanted.wait()
            is_wanted, self._wanted = self._wanted.is_set(), anyio.Event()
            found = await anyio.to_thread.run_sync(self._signatures)
            is_stable, before = found == before, found
            if is_wanted or (is_stable and found != self._seen):
                self._seen = found
                await self._reload()

    async def _reload(self) -> None:
        try:
            self._context, self._expires = await anyio.to_thread.run_sync(_load, self._settings)
        except ConfigError as error:
            self._failure = f"The renewed certificate is not applied, the earlier one stays in use: {error}"
            logger.error("certificate not applied error=%s", error)
            return
        self._failure = None
        self._key_notes = await anyio.to_thread.run_sync(key_notes, self._settings)
        logger.info("certificate applied file=%s expires=%s", self._settings.certificate, self._expires.isoformat())
        for note in self.problems():
            logger.warning("certificate problem text=%s", note)

    def _signatures(self) -> tuple[Signature, Signature]:
        return signature_of(Path(self._settings.certificate)), signature_of(Path(self._settings.key))


def expiry_notes(settings: TlsSettings, expires: datetime) -> list[str]:
    """Return a note if the certificate expires within `EXPIRY_NOTE_DAYS` or has expired."""
    if expires - datetime.now(UTC) > timedelta(days=EXPIRY_NOTE_DAYS):
        return []
    verb = "expired" if expires <= datetime.now(UTC) else "expires"
    when = f"{verb} on {expires:%Y-%m-%d %H:%M} UTC"
    return [f"The TLS certificate {settings.certificate} {when}. Renew it; a running gateway reads the new files."]


def key_notes(settings: TlsSettings) -> list[str]:
    """Return a note if every user of this machine can read the file of the private key. Blocks."""
    if os.name != "posix":
        return []
    try:
        mode = Path(settings.key).stat().st_mode
    except OSError:
        return []
    if not mode & (stat.S_IROTH | stat.S_IWOTH):
        return []
    return [f"Other users of this machine can read or change the TLS key {settings.key}. Run `chmod o-rwx` on it."]


def _load(settings: TlsSettings) -> tuple[ssl.SSLContext, datetime]:
    """Return a TLS context with the configured certificate and key, and the moment at which the certificate expires.

    Raises:
        ConfigError: As `ServerCertificate`.
    """
    certificate = _read_certificate(settings)
    key = _read_key(settings)
    if certificate.public_key() != key.public_key():
        text = f"The TLS key {settings.key} does not belong to the first certificate in {settings.certificate}."
        fix = "Write the gateway's certificate first, intermediate certificates after it, and name the key of this certificate"
        raise ConfigError(f"{text} {fix}.", path=_KEY)
    now, begins, expires = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if expires <= now or begins > now:
        what = f"expired on {expires:%Y-%m-%d %H:%M} UTC" if expires <= now else f"is valid only from {begins:%Y-%m-%d %H:%M} UTC"
        fix = "Renew it" if expires <= now else "Check this machine's clock"
        raise ConfigError(f"The TLS certificate {settings.certificate} {what}. {fix}.", path=_CERTIFICATE)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    password = settings.key_password or ""
    try:
        # With a function, OpenSSL never asks for a password at the terminal.
        context.load_cert_chain(settings.certificate, settings.key, password=lambda: password)
    except (OSError, ValueError) as error:  # `ssl.SSLError` is an `OSError`
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        text = f"The TLS certificate {settings.certificate} and the key {settings.key} cannot be used: {reason}. Check both files."
        raise ConfigError(text, path=_CERTIFICATE) from None
    return context, expires


def _read_certificate(settings: TlsSettings) -> x509.Certificate:
    from cryptography import x509

    data = _read(settings.certificate, "certificate", _CERTIFICATE)
    try:
        return x509.load_pem_x509_certificates(data)[0]
    except ValueError:
        fix = "Write a file that begins with the server's certificate (`-----BEGIN CERTIFICATE-----`)"
        raise ConfigError(f"The TLS certificate {settings.certificate} is not a PEM certificate. {fix}.", path=_CERTIFICATE) from None


def _read_key(settings: TlsSettings) -> PrivateKeyTypes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data, password = _read(settings.key, "key", _KEY), settings.key_password
    is_encrypted = b"ENCRYPTED" in data
    try:
        return load_pem_private_key(data, password.encode() if password is not None and is_encrypted else None)
    except TypeError:
        fix = 'Write its password as a reference: `"keyPassword": "${TLS_KEY_PASSWORD}"`'
        raise ConfigError(f"The TLS key {settings.key} is encrypted. {fix} in `server.http.tls`.", path=f"{_KEY}Password") from None
    except (ValueError, UnsupportedAlgorithm):
        if is_encrypted:
            text = f"The TLS key {settings.key} cannot be decrypted with `server.http.tls.keyPassword`. Correct the password."
            raise ConfigError(text, path=f"{_KEY}Password") from None
        fix = "Write a file with `-----BEGIN PRIVATE KEY-----`"
        raise ConfigError(f"The TLS key {settings.key} is not a PEM private key. {fix}.", path=_KEY) from None


def _read(file: str, what: str, path: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        reason = error.strerror or "unknown reason"
        text = f"The TLS {what} {file} cannot be read: {reason}. Correct `{path}`, or let the gateway's user read the file."
        raise ConfigError(text, path=path) from None
