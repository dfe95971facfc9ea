"""Signatures of skills: a root that demands them serves only skills that are signed, and exactly as they were signed.

OpenSSF model signing: one file in each skill's folder, by a key, a certificate or an identity at Sigstore. The library
`model-signing` (extra `signatures`, some thirty megabytes with what it needs, hence an extra) verifies the very bytes that are
indexed, in a copy, so that nothing can change in between. Whatever cannot be verified is refused. Blocking.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

from gateway.config.skills import SignatureRule
from gateway.diagnostics import Diagnostic
from gateway.json_types import JsonMapping, JsonValue

MAX_SIGNATURE_BYTES = 4 * 1024 * 1024
"""A larger signature file is none: it lists a digest for each of at most 512 files."""


class Verifying(Protocol):
    """What is used of the library's configuration."""

    def use_elliptic_key_verifier(self, *, public_key: Path) -> Verifying:
        """By a key."""
        ...

    def use_certificate_verifier(self, *, certificate_chain: list[Path]) -> Verifying:
        """By certificates."""
        ...

    def use_sigstore_verifier(self, *, identity: str, oidc_issuer: str, trust_config: Path | None) -> Verifying:
        """By an identity."""
        ...

    def verify(self, model_path: Path, signature_path: Path) -> None:
        """Raises anything for what is not as it was signed."""
        ...


INSTALL = "install it with `pip install 'moongate[signatures]'`"


def rule_for(folder: str, signed: Mapping[str, SignatureRule]) -> SignatureRule | None:
    """The rule for a skill's folder: of the innermost root around it that has one, whichever root it was found by."""
    around = [root for root in signed if folder == root or folder.startswith(root.rstrip(os.sep) + os.sep)]
    return signed[max(around, key=len)] if around else None


def judge_signature(folder: str, files: Mapping[str, bytes], rule: SignatureRule) -> list[Diagnostic]:
    """Nothing for a skill that is as it was signed; else what is wrong, which refuses it. `files` are all its bytes, by path."""
    signature = files.get(rule.file)
    if signature is None:
        return [_error("signature-missing", f"There is no {rule.file!r}; this folder serves signed skills only. Sign it.")]
    try:
        from model_signing import verifying  # the extra is not needed by anybody else
    except ImportError as error:
        return [_error("signature-unchecked", f"Signatures cannot be checked ({error.name} is missing); {INSTALL}.")]
    if problem := _unreadable(signature, rule):
        return [_error("signature-invalid", problem)]
    with tempfile.TemporaryDirectory(prefix="moongate-signed-") as place:
        copy = Path(place) / (os.path.basename(folder) or "skill")
        for path, data in files.items():
            target = copy.joinpath(*path.split("/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        try:
            _with_rule(cast("Verifying", verifying.Config()), rule).verify(copy, copy / rule.file)
        except Exception as error:  # the library raises whatever its own libraries do; all of it means that nothing is verified
            reason = " ".join(f"{type(error).__name__}: {error}".split()).replace(place, "")[:500]
            return [_error("signature-invalid", f"The skill is not as it was signed, or not by whom it must be: {reason}")]
    return []


def _with_rule(config: Verifying, rule: SignatureRule) -> Verifying:
    if rule.public_key is not None:
        return config.use_elliptic_key_verifier(public_key=Path(rule.public_key))
    if rule.certificates:
        return config.use_certificate_verifier(certificate_chain=[Path(path) for path in rule.certificates])
    assert rule.identity is not None and rule.issuer is not None, "the configuration demands one of three"
    trust = Path(rule.trust_config) if rule.trust_config is not None else None
    return config.use_sigstore_verifier(identity=rule.identity, oidc_issuer=rule.issuer, trust_config=trust)


def _unreadable(signature: bytes, rule: SignatureRule) -> str:
    """Why a signature is not even looked at; empty when it is."""
    if len(signature) > MAX_SIGNATURE_BYTES:
        return f"{rule.file!r} is larger than {MAX_SIGNATURE_BYTES} bytes."
    try:
        bundle: JsonValue = json.loads(signature)
    except (ValueError, RecursionError):
        return f"{rule.file!r} is no JSON; a signature is a Sigstore bundle."
    material: JsonValue = cast("JsonMapping", bundle).get("verificationMaterial") if isinstance(bundle, dict) else None
    key: JsonValue = cast("JsonMapping", material).get("publicKey") if isinstance(material, dict) else None
    if rule.public_key is not None and not (isinstance(key, dict) and cast("JsonMapping", key).get("hint")):
        return "It does not name the key that it was made with; sign the skill anew."
    return ""


def _error(code: str, message: str) -> Diagnostic:
    return Diagnostic(code, "error", message)
