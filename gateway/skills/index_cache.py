"""The skill index on disk: what was read of each folder, so that a restart compares stamps instead of reading files.

An entry counts only while the file still has its stamp. A cache file that is missing, torn, or written by other rules is ignored.
Blocking; `library` calls it in a worker thread.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter

from gateway.config import documents
from gateway.errors import StorageError
from gateway.skills import folders, mime, model, parser, reader
from gateway.skills.model import Key
from gateway.skills.reader import SkillFolder
from gateway.storage.atomic_files import make_private_folder, write_atomic

logger = logging.getLogger(__name__)

RULES = (documents, folders, mime, model, parser, reader)
"""The modules that judge what they read. If their code changes, every folder is read again."""

MAX_BYTES = 1 << 30
"""A larger file was not written by `write_cache`."""


def cache_file(state_folder: Path, roots: tuple[str, ...]) -> Path:
    """Return the cache file of these roots. Gateways with other roots have files of their own."""
    return state_folder / f"skills-{hashlib.sha256(json.dumps(roots).encode()).hexdigest()[:16]}.json"


def write_cache(path: Path, index: Mapping[Key, SkillFolder]) -> None:
    """Write the folders of an index. A folder that cannot be written to is logged; the next start then reads every file."""
    document = {"format": _rules_digest(), "folders": [dataclasses.asdict(folder) for folder in index.values()]}
    try:
        make_private_folder(path.parent)
        write_atomic(path, json.dumps(document, separators=(",", ":")).encode())
    except (StorageError, OSError) as error:
        logger.info("skill index not cached error=%s", error)


def read_cache(path: Path) -> dict[Key, SkillFolder]:
    """Return the folders that `write_cache` wrote; empty if the file cannot be used."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return {}
        document = json.loads(path.read_bytes())
        if document["format"] != _rules_digest():
            return {}
        found = TypeAdapter(list[SkillFolder]).validate_python(document["folders"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        logger.info("cached skill index ignored error=%r", error)
        return {}
    return {folder.key: folder for folder in found}


def _rules_digest() -> str:
    return hashlib.sha256(b"".join(Path(module.__file__ or "").read_bytes() for module in RULES)).hexdigest()
