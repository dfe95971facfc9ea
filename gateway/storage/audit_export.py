"""Exports the audit log to files with signed manifests, and verifies such files without the gateway. Used by `moongate audit`.

An export is a file of entries, and beside it `<file>.manifest.json`. The manifest has the file's size and SHA-256, the ids of its first and
last entry, and the chain's digests before the first and of the last entry. An Ed25519 signature covers the manifest. Its key is derived
from the installation key, so all gateways of an installation sign with the same key, and every holder of the public key can verify.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import cast

from gateway.errors import StorageError
from gateway.json_types import JsonObject, JsonValue
from gateway.storage.audit import AuditLog, ChainEnds
from gateway.storage.audit_formats import Format, header, moment, to_line

PURPOSE = "audit-export"
"""Purpose of the installation's key from which the key that signs exports is derived."""

MANIFEST_SUFFIX = ".manifest.json"

_KEY_PREFIX = "ed25519:"
_KEY_BYTES = 32
_CHUNK = 1 << 20
_MAX_MANIFEST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Export:
    """An export that was written: its file, its manifest, and what is wrong with the log (empty if nothing)."""

    path: Path
    manifest: JsonObject
    problem: str


def public_key(seed: bytes) -> str:
    """Return the public key of the exports of an installation as text (`ed25519:…`). `seed` is the installation's key for `PURPOSE`."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(seed).public_key()
    return _KEY_PREFIX + base64.b64encode(key.public_bytes_raw()).decode()


async def write_export(log: AuditLog, path: Path, form: Format, *, since: float, seed: bytes, version: str) -> Export:
    """Write all entries since `since` (seconds since the epoch) to the new file `path`, and its manifest. Entries are verified meanwhile.

    If an entry was changed or removed, the export ends before it, and the manifest says so.

    Raises:
        StorageError: A file exists or cannot be written, or the log cannot be read.
    """
    ends, problem = await log.ends()
    ends = await _since(log, ends, since)
    digest, size, count, first, last = hashlib.sha256(), 0, 0, 0, 0
    head = ends.base
    try:
        with path.open("xb") as file:
            lines = [header(form).encode()]
            async for stored, found in log.checked(ends):
                if stored is None:
                    problem = found
                    break
                lines.append(to_line(stored, form, version).encode("utf-8", "backslashreplace"))
                first, last, count, head = first or stored.id, stored.id, count + 1, stored.digest
                if len(lines) >= 1000:
                    size += _write(file.write, digest.update, lines)
            size += _write(file.write, digest.update, lines)
        manifest: JsonObject = {
            "version": 1, "product": "Moongate", "productVersion": version, "createdAt": moment(time.time()), "file": path.name,
            "format": form, "since": moment(since), "entries": count, "firstId": first, "lastId": last, "bytes": size,
            "sha256": digest.hexdigest(), "before": ends.base, "head": head, "problem": problem, "publicKey": public_key(seed),
        }  # fmt: skip
        manifest["signature"] = _sign(manifest, seed)
        with manifest_of(path).open("x", encoding="utf-8") as out:
            out.write(json.dumps(manifest, indent=2) + "\n")
    except FileExistsError as error:
        raise StorageError(f"{error.filename!r} exists; choose another file for the export.") from None
    except OSError as error:
        raise StorageError(f"The export cannot be written: {error.strerror or error}.") from None
    return Export(path, manifest, problem)


def _write(write: Callable[[bytes], object], update: Callable[[bytes], object], lines: list[bytes]) -> int:
    data = b"".join(lines)
    lines.clear()
    write(data)
    update(data)
    return len(data)


async def _since(log: AuditLog, ends: ChainEnds, since: float) -> ChainEnds:
    """Return the ends of the part of the chain that begins with the first entry since `since`."""
    first = await log.first_since(since)
    if not first:
        return ChainEnds(ends.last + 1, ends.head, ends.last, ends.head)
    if first <= ends.first:
        return ends
    (before,) = await log.after(first - 2, up_to=first - 1, limit=1) or (None,)
    return ends if before is None else ChainEnds(first, before.digest, ends.last, ends.head)


def manifest_of(path: Path) -> Path:
    """Return the path of the manifest of the export in the file `path`."""
    return path.with_name(path.name + MANIFEST_SUFFIX)


def verify_export(path: Path, key: str) -> JsonObject:
    """Check a file of an export against its manifest, and the manifest's signature with the public key `key`. Return the manifest.

    Needs neither the gateway nor its database. The public key in the manifest is not used, because whoever changes a manifest can change
    its key too.

    Raises:
        StorageError: The file or manifest is missing, was changed, or is not signed with `key`.
    """
    manifest = _read_manifest(path)
    signature = manifest.pop("signature", None)
    if not isinstance(signature, str) or not _is_signed(manifest, signature, key):
        raise StorageError(f"The manifest of {path.name!r} is not signed with this key, or it was changed.")
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise StorageError(f"{path.name!r} cannot be read: {error.strerror or error}.") from None
    if size != manifest.get("bytes") or not hmac.compare_digest(digest.hexdigest(), str(manifest.get("sha256"))):
        raise StorageError(f"{path.name!r} was changed after the export: its size or SHA-256 differs from the manifest.")
    if (count := _entries(path, str(manifest.get("format")))) != manifest.get("entries"):
        raise StorageError(f"{path.name!r} has {count} entries, and its manifest says {manifest.get('entries')}.")
    if manifest.get("problem"):
        raise StorageError(f"The audit log was already damaged when {path.name!r} was exported: {manifest['problem']}.")
    return manifest


def verify_sequence(manifests: Sequence[JsonObject]) -> str:
    """Return a description of the first gap between verified exports, which may overlap; empty if they have all entries in between."""
    parts = sorted((m for m in manifests if m["entries"]), key=lambda m: cast("int", m["firstId"]))
    for before, after in pairwise(parts):
        last, first = cast("int", before["lastId"]), cast("int", after["firstId"])
        if first > last and after["before"] != before["head"]:
            return f"entries between {last} ({before['file']}) and {first} ({after['file']}) are missing"
    return ""


def _read_manifest(path: Path) -> JsonObject:
    place = manifest_of(path)
    try:
        with place.open("rb") as file:
            found: JsonValue = json.loads(file.read(_MAX_MANIFEST_BYTES))
    except OSError as error:
        raise StorageError(f"The manifest {place.name!r} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise StorageError(f"{place.name!r} is not a manifest of an export.")
    return cast("JsonObject", found)


def _entries(path: Path, form: str) -> int:
    with path.open(encoding="utf-8", newline="") as file:
        return sum(1 for _ in csv.reader(file)) - 1 if form == "csv" else sum(1 for _ in file)


def _message(manifest: JsonObject) -> bytes:
    return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()


def _sign(manifest: JsonObject, seed: bytes) -> str:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return base64.b64encode(Ed25519PrivateKey.from_private_bytes(seed).sign(_message(manifest))).decode()


def _is_signed(manifest: JsonObject, signature: str, key: str) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(decode_key(key)).verify(base64.b64decode(signature, validate=True), _message(manifest))
    except (InvalidSignature, ValueError):
        return False
    return True


def decode_key(key: str) -> bytes:
    """Return the bytes of a public key that `public_key` returned. Raises `StorageError` if it is not such a key."""
    try:
        raw = base64.b64decode(key.removeprefix(_KEY_PREFIX), validate=True)
    except ValueError:
        raw = b""
    if not key.startswith(_KEY_PREFIX) or len(raw) != _KEY_BYTES:
        raise StorageError(f"{key[:80]!r} is not a public key of exports, like `{_KEY_PREFIX}…` that `moongate audit key` prints.")
    return raw
