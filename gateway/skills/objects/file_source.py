"""`FileSkillsSource`: skills in folders as Python objects, by the strict rules of Microsoft's agent framework.

`skills.reader` reads each folder, within the same limits as for the gateway's index. This module leaves out every skill that breaks one of
agent-framework's rules, and logs an error. Files of a skill that are reached by links are not offered. A resource is read from the disk
again at each use, and a script is checked again before it runs.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import anyio.to_thread

from gateway.json_types import JsonObject, JsonValue
from gateway.policy.skill_policy import is_safe_name
from gateway.skills.model import MANIFEST, Key, SkillDocument, is_manifest
from gateway.skills.objects.code_skills import InlineSkillResource
from gateway.skills.objects.skill import FileSkill, FileSkillScript, Skill, SkillFrontmatter, SkillScriptRunner, read_below
from gateway.skills.objects.sources import SkillsSource, SkillsSourceContext, first_of_each_name
from gateway.skills.parser import KNOWN_KEYS
from gateway.skills.reader import FolderReader, SkillFolder

logger = logging.getLogger(__name__)

RESOURCE_EXTENSIONS = (".md", ".json", ".yaml", ".yml", ".csv", ".xml", ".txt")
SCRIPT_EXTENSIONS = (".py",)
"""Extensions of the files that are offered as scripts by default. `RESOURCE_EXTENSIONS` lists the default extensions of resources."""

SEARCH_DEPTH = 2
"""Default number of folder levels whose files a skill offers: files directly in the skill's folder, and in its sub-folders."""

SKILL_DEPTH = 2
"""Number of folder levels below each given path that are searched for skills."""

_REFUSED = frozenset({"file-name-case", "name-missing", "name-illegal", "name-not-directory", "yaml-repaired", "not-json"})
"""Codes of the warnings of `parse_skill` that count as errors, because agent-framework's rules forbid what they report."""

FileFilter = Callable[[str, str], bool]
"""Function that receives the name of a skill and a path in it, and returns whether this file is offered."""


class FileSkillsSource(SkillsSource):
    """Source of the skills in and below given folders.

    Each call of `get_skills` reads the disk; wrap the source in `CachingSkillsSource` to avoid that.
    """

    def __init__(
        self,
        skill_paths: str | Path | Sequence[str | Path],
        *,
        script_runner: SkillScriptRunner | None = None,
        resource_extensions: Sequence[str] | None = None,
        script_extensions: Sequence[str] | None = None,
        search_depth: int = SEARCH_DEPTH,
        script_filter: FileFilter | None = None,
        resource_filter: FileFilter | None = None,
        resource_directories: Sequence[str] | None = None,
        script_directories: Sequence[str] | None = None,
    ) -> None:
        """Store the settings. Each of `skill_paths` is the folder of a skill, or has skills one or two levels below it.

        `resource_extensions` and `script_extensions` are the file extensions to offer: `None` means the default extensions, an empty
        sequence offers no files. `resource_directories` and `script_directories`, with the meaning of agent-framework before 1.10, restrict
        the offer to files directly in these sub-folders; `.` is the skill's own folder.

        Raises:
            ValueError: `search_depth` is below 1, or the name of a directory is blank.
        """
        if search_depth < 1:
            raise ValueError(f"search_depth must be at least 1, not {search_depth}.")
        given = [skill_paths] if isinstance(skill_paths, str | Path) else skill_paths
        self._roots = [str(path) for path in given if str(path).strip()]
        self._runner = script_runner
        self._known: Mapping[Key, SkillFolder] = {}
        folders = _folders(resource_directories), _folders(script_directories)
        depth = max([search_depth, *(folder.count("/") + 2 for named in folders for folder in named or () if folder)])
        resource_extensions = RESOURCE_EXTENSIONS if resource_extensions is None else resource_extensions
        script_extensions = SCRIPT_EXTENSIONS if script_extensions is None else script_extensions
        self._resources = FileSelection(resource_extensions, depth, folders[0], resource_filter)
        self._scripts = FileSelection(script_extensions, depth, folders[1], script_filter)

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """Read the skills from the disk, and return them ordered by given path and location.

        A broken skill, and a skill with the name of an earlier skill, is left out and logged.
        """
        return await anyio.to_thread.run_sync(self._read)

    def _read(self) -> list[Skill]:
        reader = FolderReader(self._known, {})
        folders = [folder for folder in reader.read_roots(self._roots, SKILL_DEPTH) if not folder.is_nested]
        self._known = {folder.key: folder for folder in folders}
        for report in reader.trouble:
            logger.warning("skill folder ignored path=%s reason=%r", report.path, "; ".join(d.message for d in report.diagnostics))
        return first_of_each_name([skill for folder in folders if (skill := self._to_skill(folder)) is not None])

    def _to_skill(self, folder: SkillFolder) -> FileSkill | None:
        frontmatter = to_frontmatter(folder.document, os.path.join(folder.path, MANIFEST))
        if frontmatter is None:
            return None
        name, root = frontmatter.name, folder.key[0]
        unlinked = [path for path, file in sorted(folder.files.items()) if file.segments == (*folder.segments, *path.split("/"))]
        places = [(path, os.path.join(folder.path, *path.split("/"))) for path in unlinked]
        resources = [(path, partial(_read_text, root, full)) for path, full in places if self._resources.has(name, path)]
        scripts = [(path, full) for path, full in places if self._scripts.has(name, path)]
        return FileSkill(
            frontmatter=frontmatter,
            content=folder.document.text,
            path=folder.path,
            resources=[InlineSkillResource(name=path, function=read) for path, read in resources],
            scripts=[FileSkillScript(name=path, full_path=full, runner=self._runner, root=root) for path, full in scripts],
        )


def _read_text(root: str, path: str) -> str:
    return read_below(root, path).decode("utf-8")


@dataclass(frozen=True, slots=True)
class FileSelection:
    """Rule that selects the files of a skill to offer as resources, or as scripts: by extension, folder and filter."""

    extensions: Sequence[str]
    """File extensions to offer, with their dots, in upper or lower case."""
    depth: int
    """Number of folder levels whose files are offered; 1 means only the files directly in the skill's folder."""
    folders: Container[str] | None = None
    """Folders of the skill whose files are offered, without the files of their sub-folders; `None` for all folders."""
    chosen: FileFilter | None = None
    """Filter that must also accept the file; `None` accepts all files."""

    def has(self, skill: str, path: str) -> bool:
        """Return whether the file `path` of the skill is offered. `SKILL.md` files are never offered."""
        extension = os.path.splitext(path)[1].lower()
        if is_manifest(path) or path.count("/") >= self.depth or extension not in map(str.lower, self.extensions):
            return False
        if self.folders is not None and path.rpartition("/")[0] not in self.folders:
            return False
        return self.chosen is None or self.chosen(skill, path)


def _folders(names: Sequence[str] | None) -> frozenset[str] | None:
    if names is None:
        return None
    found: set[str] = set()
    for name in names:
        if not name.strip():
            raise ValueError("A directory name cannot be blank.")
        path = path_inside(name)
        if path is None:
            logger.warning("directory ignored reason='outside the skill' name=%r", name)
        else:
            found.add(path)
    return frozenset(found)


def path_inside(name: str) -> str | None:
    """Return `name` as relative path with `/` as separator, without empty and `.` segments; `None` if it could leave its folder."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    return "/".join(parts) if is_safe_name(name) and not (parts and ":" in parts[0]) else None


def to_frontmatter(document: SkillDocument, place: str, level: int = logging.ERROR) -> SkillFrontmatter | None:
    """Return the frontmatter of a parsed `SKILL.md`; if it breaks a rule of agent-framework, log the reason and return `None`.

    `place` is the file's path or URI for the log, and `level` the level of the log line.
    """
    fields = document.frontmatter
    problems = [finding.message for finding in document.diagnostics if finding.level == "error" or finding.code in _REFUSED]
    problems += [f"write {key.lower()!r} instead of {key!r}" for key in fields if key not in KNOWN_KEYS and key.lower() in KNOWN_KEYS]
    texts = {key: _scalar(fields.get(key)) for key in ("license", "compatibility", "allowed-tools")}
    problems += [f"{key!r} must be a string" for key, text in texts.items() if text is None and fields.get(key) is not None]
    try:
        if problems:
            raise ValueError(problems[0])
        return SkillFrontmatter(
            name=document.name,
            description=document.description,
            metadata=_metadata(fields.get("metadata"), place, min(level, logging.WARNING)),
            **{key.replace("-", "_"): text for key, text in texts.items()},
        )
    except ValueError as error:
        logger.log(level, "skill left out file=%s reason=%r", place, str(error))
        return None


def _metadata(value: JsonValue, place: str, level: int) -> dict[str, str] | None:
    if not isinstance(value, dict):
        if value is not None:
            logger.log(level, "metadata ignored file=%s reason='not a mapping'", place)
        return None
    entries = {key: _scalar(item) for key, item in cast("JsonObject", value).items()}
    for key in (key for key, text in entries.items() if text is None):
        logger.log(level, "metadata entry ignored file=%s key=%r reason='not a string'", place, key)
    return {key: text for key, text in entries.items() if text is not None}


def _scalar(value: JsonValue) -> str | None:
    """Convert a value of the frontmatter to text; `None` if it is not a text, number or boolean."""
    return value if isinstance(value, str) else json.dumps(value) if isinstance(value, bool | int | float) else None
