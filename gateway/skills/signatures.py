"""Verifies signatures of skills, for root folders (folders searched for skills) for which the configuration requires signatures.

The format is OpenSSF model signing: one signature file in each skill's folder, made with a key, a certificate or a Sigstore identity. The
library `model-signing` (extra `signatures`, about 30 MB with its dependencies) verifies a copy of exactly the bytes that are indexed, so
that the bytes cannot change in between. A skill that cannot be verified is refused. `reader` uses this module. Blocking.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gateway.config.skill_settings import SignatureRule
from gateway.diagnostics import Diagnostic
from gateway.json_types import members_of
from gateway.skills.folders import segments_below

MAX_SIGNATURE_BYTES = 4 * 1024 * 1024
"""Maximum size of a signature file; a larger file is refused. A signature has one digest for each of at most 512 files."""


INSTALL = "install it with `pip install 'moongate[signatures]'`"


def rule_for(folder: str, signed: Mapping[str, SignatureRule]) -> SignatureRule | None:
    """Return the signature rule for the skill folder `folder`, or `None` if its signature is not required.

    `signed` maps folders that are searched for skills to rules. If several of these folders contain `folder`, the rule of the innermost
    folder is returned.
    """
    around = [root for root in signed if segments_below(root, folder) is not None]
    return signed[max(around, key=len)] if around else None


def judge_signature(folder: str, files: Mapping[str, bytes], rule: SignatureRule) -> list[Diagnostic]:
    """Verify the signature of the skill in `folder`, and return an error for each problem; an empty list means that it is valid.

    `files` has the content of all files by path. Any error refuses the skill.
    """
    signature = files.get(rule.file)
    if signature is None:
        return [_error("signature-missing", f"{rule.file!r} is missing; this folder serves only signed skills. Sign the skill.")]
    try:
        from model_signing import verifying  # part of the extra `signatures`
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
            _with_rule(cast("Any", verifying.Config()), rule).verify(copy, copy / rule.file)
        except Exception as error:  # the library lets exceptions of its dependencies through; each means an unverified signature
            reason = " ".join(f"{type(error).__name__}: {error}".split()).replace(place, "")[:500]
            return [_error("signature-invalid", f"The signature does not match the skill or the configured signer: {reason}")]
    return []


def _with_rule(config: Any, rule: SignatureRule) -> Any:
    if rule.public_key is not None:
        return config.use_elliptic_key_verifier(public_key=Path(rule.public_key))
    if rule.certificates:
        return config.use_certificate_verifier(certificate_chain=[Path(path) for path in rule.certificates])
    assert rule.identity is not None and rule.issuer is not None, "the configuration requires one of the three"
    trust = Path(rule.trust_config) if rule.trust_config is not None else None
    return config.use_sigstore_verifier(identity=rule.identity, oidc_issuer=rule.issuer, trust_config=trust)


def _unreadable(signature: bytes, rule: SignatureRule) -> str:
    """Return the reason why a signature file cannot be used; empty if it can be used."""
    if len(signature) > MAX_SIGNATURE_BYTES:
        return f"{rule.file!r} is larger than {MAX_SIGNATURE_BYTES} bytes."
    try:
        bundle = members_of(json.loads(signature))
    except (ValueError, RecursionError):
        return f"{rule.file!r} is not JSON; a signature must be a Sigstore bundle."
    key = members_of(members_of(bundle.get("verificationMaterial")).get("publicKey"))
    if rule.public_key is not None and not key.get("hint"):
        return "The signature does not name its key; sign the skill again."
    return ""


def _error(code: str, message: str) -> Diagnostic:
    return Diagnostic(code, "error", message)
