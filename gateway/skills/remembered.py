"""The index on disk: what was read of the skill folders, so that a restart looks at stamps instead of reading files.

A cache and nothing more: what it says of a file counts only while the file has the same stamp, and a cache that is
missing, torn or of another version is no cache. Blocking; `library` calls it in a worker thread.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gateway.config import documents
from gateway.diagnostics import Diagnostic
from gateway.errors import StorageError
from gateway.json_types import JsonValue
from gateway.skills import files, index, mime, models, parser
from gateway.skills.files import Found, Listing
from gateway.skills.index import Candidate, Key
from gateway.skills.models import SkillDocument, SkillFile, Stamp
from gateway.storage.files import make_private_folder, write_atomic

logger = logging.getLogger(__name__)

RULES = (documents, files, index, mime, models, parser)
"""The modules that judge what they read: with other code in them, everything is read anew."""

MAX_BYTES = 1 << 30
"""A larger file is not ours."""


def file_for(folder: Path, roots: tuple[str, ...]) -> Path:
    """Where the index of these roots is kept in a state folder; gateways with other folders have files of their own."""
    return folder / f"skills-{hashlib.sha256(json.dumps(roots).encode()).hexdigest()[:16]}.json"


def keep(path: Path, candidates: Mapping[Key, Candidate]) -> None:
    """Write the index. A folder that cannot be written to costs time at the next start, no more."""
    document = {"format": _rules(), "candidates": [_candidate_out(c) for c in candidates.values()]}
    try:
        make_private_folder(path.parent)
        write_atomic(path, json.dumps(document, separators=(",", ":")).encode())
    except (StorageError, OSError) as error:
        logger.info("the index of skills could not be kept error=%s", error)


def recall(path: Path) -> dict[Key, Candidate]:
    """What `keep` wrote; nothing where that cannot be read."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return {}
        document = json.loads(path.read_bytes())
        if document["format"] != _rules():
            return {}
        found = [_candidate_in(item) for item in document["candidates"]]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        logger.info("the kept index of skills is not used error=%r", error)
        return {}
    return {candidate.key: candidate for candidate in found}


def same_candidates(now: Mapping[Key, Candidate], then: Mapping[Key, Candidate]) -> bool:
    """Whether nothing was read anew."""
    return len(now) == len(then) and all(then.get(key) is candidate for key, candidate in now.items())


def _rules() -> str:
    """A digest of the code that judges."""
    return hashlib.sha256(b"".join(Path(module.__file__ or "").read_bytes() for module in RULES)).hexdigest()


def _candidate_out(c: Candidate) -> list[JsonValue]:
    listing, document = c.listing, c.document
    return [
        list(c.key),
        list(c.segments),
        c.is_nested,
        [
            [[f.path, list(f.segments), list(f.stamp)] for f in listing.files],
            [d.to_json() for d in listing.problems],
            listing.manifest_name,
            [list(segments) for segments in listing.nested],
        ],
        [
            dict(document.frontmatter),
            document.name,
            document.description,
            document.text,
            document.body_start,
            document.conformant,
            [d.to_json() for d in document.diagnostics],
        ],
        [[f.path, list(f.segments), list(f.stamp), f.digest, f.mime_type, f.is_text, f.is_script, f.is_settled] for f in c.files.values()],
        [d.to_json() for d in c.diagnostics],
    ]


def _candidate_in(item: Any) -> Candidate:
    key, segments, is_nested, listing, document, kept_files, diagnostics = item
    found = [Found(path, tuple(inner), _stamp(stamp)) for path, inner, stamp in listing[0]]
    frontmatter, name, description, text, body_start, conformant, noted = document
    rows = [
        SkillFile(path, tuple(inner), _stamp(stamp), digest, mime, is_text, is_script, is_settled)
        for path, inner, stamp, digest, mime, is_text, is_script, is_settled in kept_files
    ]
    return Candidate(
        key=(key[0], key[1]),
        segments=tuple(segments),
        is_nested=is_nested,
        listing=Listing(found, _diagnostics(listing[1]), listing[2], [tuple(inner) for inner in listing[3]]),
        document=SkillDocument(frontmatter, name, description, text, body_start, conformant, tuple(_diagnostics(noted))),
        files={row.path: row for row in rows},
        diagnostics=tuple(_diagnostics(diagnostics)),
    )


def _stamp(value: Any) -> Stamp:
    size, mtime, inode, ctime = value
    return (int(size), int(mtime), int(inode), int(ctime))


def _diagnostics(items: Any) -> list[Diagnostic]:
    return [Diagnostic(d["code"], d["level"], d["message"], d["line"]) for d in cast("list[dict[str, Any]]", items)]
