"""Cache file of the skill index: what was read of each skill folder, so that a restart need not read the files again.

An entry of the cache is used only if the file still has the recorded size, times and inode (its stamp). A cache file that is missing
or incomplete, or was written before the code that reads and checks skills (the modules in `RULES`) changed, is ignored. Blocking;
`library` calls this module in a worker thread.
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
"""The modules that read and check skill folders. If their code changes, the cache file is ignored and every folder is read again."""

MAX_BYTES = 1 << 30
"""Maximum size in bytes of a cache file that `read_cache` reads; a larger file is ignored."""


def cache_file(state_folder: Path, roots: tuple[str, ...]) -> Path:
    """Return the path of the cache file for the root folders `roots`. Each list of root folders has its own cache file."""
    return state_folder / f"skills-{hashlib.sha256(json.dumps(roots).encode()).hexdigest()[:16]}.json"


def write_cache(path: Path, index: Mapping[Key, SkillFolder]) -> None:
    """Write what was read of each skill folder to the cache file.

    A failure is logged; the next start of the gateway then reads every file again.
    """
    document = {"format": _rules_digest(), "folders": [dataclasses.asdict(folder) for folder in index.values()]}
    try:
        make_private_folder(path.parent)
        write_atomic(path, json.dumps(document, separators=(",", ":")).encode())
    except (StorageError, OSError) as error:
        logger.info("skill index not cached error=%s", error)


def read_cache(path: Path) -> dict[Key, SkillFolder]:
    """Return the skill folders that `write_cache` wrote to a cache file, by key; empty if the file cannot be used."""
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
