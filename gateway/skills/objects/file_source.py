"""`FileSkillsSource`: skill folders as objects, by agent-framework's strict rules.

`skills.reader` reads each folder, as for the gateway's index, and within the same limits. This module leaves out every skill that breaks
one of agent-framework's rules and logs an error. No link is followed. Files are read from the folder again when they are used.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import anyio.to_thread

from gateway.json_types import JsonObject, JsonValue
from gateway.policy.skill_policy import is_safe_name
from gateway.skills.folders import Problems, find_skills
from gateway.skills.model import MANIFEST, Key, SkillDocument, is_manifest
from gateway.skills.objects.members import FileSkillResource, FileSkillScript, SkillScriptRunner
from gateway.skills.objects.skill import FileSkill, Skill, SkillFrontmatter
from gateway.skills.objects.sources import SkillsSource, SkillsSourceContext, first_of_each_name
from gateway.skills.parser import KNOWN_KEYS
from gateway.skills.reader import FolderReader, SkillFolder

logger = logging.getLogger(__name__)

RESOURCE_EXTENSIONS = (".md", ".json", ".yaml", ".yml", ".csv", ".xml", ".txt")
SCRIPT_EXTENSIONS = (".py",)
"""Extensions of the files that are offered to read and to run by default."""

SEARCH_DEPTH = 2
"""Levels of a skill's folder whose files are offered by default: the folder itself and its sub-folders."""

SKILL_DEPTH = 2
"""Levels of folders below each given path that are searched for skills."""

_REFUSED = frozenset({"file-name-case", "name-missing", "name-illegal", "name-not-directory", "yaml-repaired", "not-json"})
"""Codes of diagnostics that are warnings for `parse_skill`, but errors by agent-framework's rules."""

FileFilter = Callable[[str, str], bool]
"""Decides by the name of the skill and the path in the skill whether a file is offered."""


class FileSkillsSource(SkillsSource):
    """The skills below some folders. Each call reads the disk; wrap the source in `CachingSkillsSource` to avoid that."""

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
        """Each path is the folder of a skill, or has skills one or two levels below it.

        `…_extensions` are file extensions to offer: `None` means the default ones, an empty sequence offers no files. `…_directories` limit
        the offer to files directly in these sub-folders; `.` is the skill's own folder (as before agent-framework 1.10).

        Raises:
            ValueError: `search_depth` is below 1, or the name of a directory is blank.
        """
        if search_depth < 1:
            raise ValueError(f"search_depth must be at least 1, not {search_depth}.")
        given = [skill_paths] if isinstance(skill_paths, str | Path) else skill_paths
        self._roots = [str(path) for path in given]
        self._runner = script_runner
        self._resources = Offer(RESOURCE_EXTENSIONS if resource_extensions is None else resource_extensions, resource_filter)
        self._scripts = Offer(SCRIPT_EXTENSIONS if script_extensions is None else script_extensions, script_filter)
        self._resources.folders, self._scripts.folders = _folders(resource_directories), _folders(script_directories)
        self._known: Mapping[Key, SkillFolder] = {}
        named = [folder for offer in (self._resources, self._scripts) for folder in offer.folders or ()]
        self._depth = max([search_depth, *(folder.count("/") + 2 for folder in named if folder)])

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """Return the skills on disk now, ordered by root and path. A broken skill is left out and logged."""
        return await anyio.to_thread.run_sync(self._read)

    def _read(self) -> list[Skill]:
        reader = FolderReader(self._known, {})
        folders = [reader.read((folder, ""), is_nested=False) for root in self._roots for folder in _skill_folders(root)]
        self._known = {folder.key: folder for folder in folders}
        return first_of_each_name([skill for folder in folders if (skill := self._to_skill(folder)) is not None])

    def _to_skill(self, folder: SkillFolder) -> FileSkill | None:
        top = folder.key[0]
        frontmatter = to_frontmatter(folder.document, os.path.join(top, MANIFEST))
        if frontmatter is None:
            return None
        resources: list[FileSkillResource] = []
        scripts: list[FileSkillScript] = []
        for path, file in sorted(folder.files.items()):
            if "/".join(file.segments) != path or path.count("/") >= self._depth:
                continue  # behind a link, or too deep
            full = os.path.join(top, *file.segments)
            if not is_manifest(path) and self._resources.has(frontmatter.name, path):
                resources.append(FileSkillResource(name=path, full_path=full, root=top))
            if self._scripts.has(frontmatter.name, path):
                scripts.append(FileSkillScript(name=path, full_path=full, runner=self._runner, root=top))
        return FileSkill(frontmatter=frontmatter, content=folder.document.text, path=top, resources=resources, scripts=scripts)


class Offer:
    """Decides which files of a skill are offered as resources, or as scripts."""

    def __init__(self, extensions: Sequence[str], chosen: FileFilter | None) -> None:
        self._extensions = frozenset(extension.lower() for extension in extensions)
        self._chosen = chosen
        self.folders: frozenset[str] | None = None

    def has(self, skill: str, path: str) -> bool:
        """Return whether the file `path` of a skill is offered."""
        folder, _, file = path.rpartition("/")
        if os.path.splitext(file)[1].lower() not in self._extensions or (self.folders is not None and folder not in self.folders):
            return False
        return self._chosen is None or self._chosen(skill, path)


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
    """Return a relative path with `/` as separator and without empty and `.` segments; `None` if it may be outside its folder."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    return "/".join(parts) if is_safe_name(name) and not (parts and ":" in parts[0]) else None


def to_frontmatter(document: SkillDocument, place: str) -> SkillFrontmatter | None:
    """Return the frontmatter of a parsed `SKILL.md`. If it breaks a rule, log an error that names `place` and return `None`."""
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
            license=texts["license"],
            compatibility=texts["compatibility"],
            allowed_tools=texts["allowed-tools"],
            metadata=_metadata(fields.get("metadata"), place),
        )
    except ValueError as error:
        logger.error("skill left out file=%s reason=%r", place, str(error))
        return None


def _metadata(value: JsonValue, place: str) -> dict[str, str] | None:
    if not isinstance(value, dict):
        if value is not None:
            logger.warning("metadata ignored file=%s reason='not a mapping'", place)
        return None
    entries = {key: _scalar(item) for key, item in cast("JsonObject", value).items()}
    for key in (key for key, text in entries.items() if text is None):
        logger.warning("metadata entry ignored file=%s key=%r reason='not a string'", place, key)
    return {key: text for key, text in entries.items() if text is not None}


def _scalar(value: JsonValue) -> str | None:
    """Return a text, number or boolean of the frontmatter as text; `None` for any other value."""
    return value if isinstance(value, str) else json.dumps(value) if isinstance(value, bool | int | float) else None


def _skill_folders(root: str) -> list[str]:
    """Return the folders with a `SKILL.md` below `root`, in path order, without folders inside another skill and folders behind links."""
    if not root.strip() or not os.path.isdir(root):
        logger.warning("skills folder missing path=%r", root)
        return []
    problems: Problems = []
    found = [os.path.join(top, *segments) for top, segments in find_skills(os.path.realpath(root), (), problems, SKILL_DEPTH)]
    for path, problem in problems:
        logger.warning("skill folder ignored path=%s reason=%r", path, problem.message)
    return found
