"""An authorization server for tests of the resource server: metadata, keys, introspection, and tokens of every kind of wrongness.

It answers on a socket from a thread of the test's process, so that a test can make tokens and change its behaviour at once. Its tokens are
built here by hand on `cryptography`, so that forged ones are possible and no library is tested with itself.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

CLIENT, SECRET = "gateway", "canary-introspection-secret-9d1e"


def b64(data: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int, size: int | None = None) -> str:
    """An integer of a JWK."""
    return b64(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


@dataclass
class Key:
    """A private key with its published form."""

    kid: str
    alg: str
    private: Any = field(repr=False)

    @classmethod
    def made(cls, alg: str = "ES256", kid: str | None = None, bits: int = 2048) -> Key:
        kinds: dict[str, Any] = {
            "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
            "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate,
            "RS256": lambda: rsa.generate_private_key(65537, bits),
        }
        return cls(kid or secrets.token_hex(4), alg, kinds[alg]())

    def jwk(self, **more: Any) -> dict[str, Any]:
        public = self.private.public_key()
        named: dict[str, Any] = {"kid": self.kid, "use": "sig", "alg": self.alg}
        if self.alg == "RS256":
            numbers = public.public_numbers()
            return {**named, "kty": "RSA", "n": number(numbers.n), "e": number(numbers.e), **more}
        if self.alg == "EdDSA":
            raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
            return {**named, "kty": "OKP", "crv": "Ed25519", "x": b64(raw), **more}
        size = public.curve.key_size // 8
        numbers = public.public_numbers()
        crv = {"ES256": "P-256", "ES384": "P-384"}[self.alg]
        return {**named, "kty": "EC", "crv": crv, "x": number(numbers.x, size), "y": number(numbers.y, size), **more}

    def pem(self) -> bytes:
        """The public key as text, which an attacker knows."""
        return self.private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    def sign(self, data: bytes) -> bytes:
        if self.alg == "RS256":
            return self.private.sign(data, padding.PKCS1v15(), hashes.SHA256())
        if self.alg == "EdDSA":
            return self.private.sign(data)
        digest = hashes.SHA256() if self.alg == "ES256" else hashes.SHA384()
        first, second = decode_dss_signature(self.private.sign(data, ec.ECDSA(digest)))
        size = self.private.curve.key_size // 8
        return first.to_bytes(size, "big") + second.to_bytes(size, "big")


def token_of(header: dict[str, Any], claims: Any, sign: Any) -> str:
    """A JWT with this header and content; `sign` returns the signature of its first two parts."""
    parts = f"{b64(json.dumps(header).encode())}.{b64(json.dumps(claims).encode())}"
    return f"{parts}.{b64(sign(parts.encode()))}"


def hmac_sign(secret: bytes) -> Any:
    """A signature with a shared secret (HS256)."""

    def sign(data: bytes) -> bytes:
        return hmac.digest(secret, data, hashlib.sha256)

    return sign


@dataclass
class Issuer:
    """The state of the authorization server. A test changes the fields."""

    url: str = ""
    keys: list[Key] = field(default_factory=lambda: [Key.made()])
    published: list[dict[str, Any]] | None = None
    """What the key set has instead of the keys."""
    status: int = 200
    """HTTP status of every answer."""
    metadata: dict[str, Any] = field(default_factory=lambda: {})
    """Overrides of the metadata."""
    opaque: dict[str, dict[str, Any]] = field(default_factory=lambda: {})
    """Opaque token → answer to introspection."""
    body: bytes | None = None
    """Body of every answer to introspection, and of the key set, instead of the right one."""
    hold: threading.Event | None = None
    """While it is not set, requests wait."""
    asked: list[str] = field(default_factory=lambda: list[str]())
    """Paths of the requests."""
    sent: list[dict[str, str]] = field(default_factory=lambda: list[dict[str, str]]())
    """Headers of the requests for introspection."""

    def count(self, path: str) -> int:
        """Number of requests for a path so far."""
        return self.asked.count(path)

    def claims(self, audience: str, **more: Any) -> dict[str, Any]:
        """The claims of a valid token; `None` removes one."""
        now = int(time.time())
        made: dict[str, Any] = {
            "iss": self.url, "aud": audience, "sub": "alice", "client_id": "ide", "jti": secrets.token_hex(8), "iat": now, "exp": now + 300
        }  # fmt: skip
        return {name: value for name, value in {**made, **more}.items() if value is not None}

    def token(self, audience: str, *, key: Key | None = None, header: dict[str, Any] | None = None, **more: Any) -> str:
        """A valid token; `more` are claims, `header` overrides of the header."""
        key = key or self.keys[0]
        head = {"alg": key.alg, "typ": "at+jwt", "kid": key.kid, **(header or {})}
        return token_of({k: v for k, v in head.items() if v is not None}, self.claims(audience, **more), key.sign)

    def give_opaque(self, audience: str, **more: Any) -> str:
        """A new opaque token that introspection knows."""
        token = secrets.token_urlsafe(24)
        self.opaque[token] = {"active": True, "token_type": "Bearer", **self.claims(audience, **more)}
        return token


class _Handler(BaseHTTPRequestHandler):
    issuer: Issuer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        issuer = self.issuer
        self._note()
        if self.path.startswith("/.well-known/oauth-authorization-server"):
            made = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/jwks", "introspection_endpoint": f"{issuer.url}/introspect"}
            self._send({**made, **issuer.metadata})
        elif self.path == "/jwks":
            self._send({"keys": [key.jwk() for key in issuer.keys] if issuer.published is None else issuer.published})
        else:
            self._send({}, 404)

    def do_POST(self) -> None:
        issuer = self.issuer
        self._note()
        form = {name: values[0] for name, values in parse_qs(self.rfile.read(int(self.headers["content-length"])).decode()).items()}
        issuer.sent.append(dict(self.headers.items()))
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if self.headers.get("authorization") != f"Basic {basic}":
            self._send({"error": "invalid_client"}, 401)
        else:
            self._send(issuer.opaque.get(form.get("token", ""), {"active": False}))

    def _note(self) -> None:
        self.issuer.asked.append(self.path)
        if self.issuer.hold is not None:
            self.issuer.hold.wait(30)

    def _send(self, content: dict[str, Any], status: int = 200) -> None:
        is_metadata = self.path.startswith("/.well-known")
        body = self.issuer.body if self.issuer.body is not None and not is_metadata else json.dumps(content).encode()
        self.send_response(status if self.issuer.status == 200 else self.issuer.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(issuer: Issuer, port: int = 0) -> Generator[int]:
    """Serve an issuer on a loopback port, and yield the port. Afterwards the port refuses connections."""
    handler = type("Handler", (_Handler,), {"issuer": issuer})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        if issuer.hold is not None:
            issuer.hold.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def token_issuer(**settings: Any) -> Generator[Issuer]:
    """An authorization server on a socket of its own."""
    issuer = Issuer(**settings)
    with serving(issuer) as port:
        issuer.url = f"http://127.0.0.1:{port}"
        yield issuer
