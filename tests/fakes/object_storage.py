"""An object storage server for tests: `moto` in a process of its own, with one bucket and a user who may use no other."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from gateway.storage.object_bucket import Bucket, BucketPlace
from tests.fakes.running import free_port, listens, until

BUCKET = "kept-results"
MISSING_BUCKET = "missing-bucket"
"""A bucket that does not exist; the user may use it, so the server says so."""

_USER = "moongate"
_UNSIGNED = 4
"""Requests that the server serves without a valid signature: those of `_prepare`."""


class ObjectStorage:
    """A running server. It checks signatures, so wrong keys are refused."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, authority: Path | None) -> None:
        self._process = process
        self.url = f"http{'' if authority is None else 's'}://127.0.0.1:{port}"
        self._tls = None if authority is None else ssl.create_default_context(cafile=str(authority))
        self.access_key, self.secret_key = self._prepare()

    @property
    def settings(self) -> dict[str, Any]:
        """The value of `storage.s3` for this server, with the secret key as a reference to `$S3_SECRET`."""
        return {"endpoint": self.url, "region": "us-east-1", "accessKey": self.access_key, "secretKey": "${S3_SECRET}"}

    def place(self, prefix: str, **more: Any) -> BucketPlace:
        """The bucket, with its keys."""
        known = BucketPlace(BUCKET, prefix, self.url, "us-east-1", self.access_key, self.secret_key)
        return replace(known, **more)

    def names(self, prefix: str) -> list[str]:
        """The names of all objects below a prefix."""
        return [item.name for portion in Bucket(self.place(prefix)).list() for item in portion]

    def pause(self) -> None:
        """Let the server answer nothing, as a hanging one; connections to it still open."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let the server answer again."""
        self._process.send_signal(signal.SIGCONT)

    def _prepare(self) -> tuple[str, str]:
        self._send(urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT"))
        self._manage("CreateUser")
        made = self._manage("CreateAccessKey")
        places = [f"arn:aws:s3:::{name}{rest}" for name in (BUCKET, MISSING_BUCKET) for rest in ("", "/*")]
        rights = {"Effect": "Allow", "Action": "s3:*", "Resource": places}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [rights]})
        self._manage("PutUserPolicy", PolicyName="bucket", PolicyDocument=policy)
        found = [re.search(f"<{name}>(.*?)</{name}>", made) for name in ("AccessKeyId", "SecretAccessKey")]
        key, secret = (match.group(1) for match in found if match is not None)
        return key, secret

    def _manage(self, action: str, **fields: str) -> str:
        body = urllib.parse.urlencode({"Action": action, "Version": "2010-05-08", "UserName": _USER, **fields}).encode()
        scope = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=x"
        return self._send(urllib.request.Request(f"{self.url}/", data=body, headers={"Authorization": scope}))

    def _send(self, request: urllib.request.Request) -> str:
        with urllib.request.urlopen(request, timeout=10, context=self._tls) as answer:
            return answer.read().decode()


@contextmanager
def object_storage(authority: Path | None = None) -> Generator[ObjectStorage]:
    """A fresh server with an empty bucket. Skip the test if the server's packages are missing.

    If `authority` is a path, the server speaks TLS with a certificate of a new authority, whose own certificate is written to this file.
    """
    missing = [name for name in ("moto", "flask", "flask_cors", "obstore") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the object storage server needs {', '.join(missing)}: run `make s3`")
    port = free_port()
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    env = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": str(_UNSIGNED), "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(1 << 28)}
    with tempfile.TemporaryDirectory(prefix="moongate-s3-") as folder, Path(folder, "log").open("wb") as log:
        if authority is not None:
            argv += ["-s", *_certificates(Path(folder), authority)]
        process = subprocess.Popen(argv, env=env, stdout=log, stderr=log, cwd=folder)
        try:
            until(lambda: listens(str(port)) or process.poll() is not None)
            yield ObjectStorage(process, port, authority)
        finally:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def _certificates(folder: Path, authority: Path) -> list[str]:
    """Write the certificate of a new authority, and one of the server with its key. Return the server's options that name the last two."""
    key, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")]), datetime.now(UTC)
    base = x509.CertificateBuilder().issuer_name(name).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    root = base.subject_name(name).public_key(key.public_key()).serial_number(1)
    leaf = base.subject_name(x509.Name([])).public_key(own.public_key()).serial_number(2)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    for path, made in (
        (authority, root.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)),
        (folder / "cert.pem", leaf.add_extension(address, critical=True)),
    ):
        path.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return ["-c", str(folder / "cert.pem"), "-k", str(folder / "key.pem")]
