"""`FileSkillsSource`: skill folders as objects, by agent-framework's strict rules (requirements 101-108).

Stricter than the gateway's own index: what is not by the book is left out with a line in the log. Nothing that is a
link is ever followed, and files are read again from the folder, segment by segment, when they are used.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import anyio.to_thread

from gateway.config.documents import DocumentError, load_yaml, split_frontmatter
from gateway.json_types import JsonObject, JsonValue
from gateway.skills.files import is_junk
from gateway.skills.models import MANIFEST
from gateway.skills.objects.frontmatter import SkillFrontmatter
from gateway.skills.objects.members import FileSkillResource, FileSkillScript, SkillScriptRunner, read_below
from gateway.skills.objects.skill import FileSkill, Skill
from gateway.skills.objects.sources import SkillsSource, SkillsSourceContext
from gateway.skills.parser import KNOWN_KEYS

logger = logging.getLogger(__name__)

RESOURCE_EXTENSIONS = (".md", ".json", ".yaml", ".yml", ".csv", ".xml", ".txt")
SCRIPT_EXTENSIONS = (".py",)
"""Files offered by default to read and to run."""

SEARCH_DEPTH = 2
"""Levels of a skill's folder whose files are offered: the folder itself and its sub-folders."""

SKILL_DEPTH = 2
"""Levels below a root where skills are looked for."""

MAX_FILES = 2_000
"""Files offered of one skill; the rest is left out."""

FileFilter = Callable[[str, str], bool]
"""Whether a file is offered: `(skill name, path in the skill)`."""


class FileSkillsSource(SkillsSource):
    """The skills below some folders. Looks at the disk each time; `CachingSkillsSource` keeps the list."""

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
        """A path is a skill's folder, or holds skills one or two levels down.

        `None` extensions are the default ones; an empty sequence offers no such files. `…_directories` narrow them to
        files directly in these sub-folders (`.` is the skill's own folder), as before agent-framework 1.10.

        Raises:
            ValueError: `search_depth` is below 1, or a directory name is blank.
        """
        if search_depth < 1:
            raise ValueError(f"search_depth must be at least 1, not {search_depth}.")
        given = [skill_paths] if isinstance(skill_paths, str | Path) else skill_paths
        self._roots = [str(path) for path in given]
        self._runner = script_runner
        self._resources = _Offer(RESOURCE_EXTENSIONS if resource_extensions is None else resource_extensions, resource_filter)
        self._scripts = _Offer(SCRIPT_EXTENSIONS if script_extensions is None else script_extensions, script_filter)
        self._resources.folders, self._scripts.folders = _folders(resource_directories), _folders(script_directories)
        named = [folder for offer in (self._resources, self._scripts) for folder in offer.folders or ()]
        self._depth = max([search_depth, *(folder.count("/") + 2 for folder in named if folder)])

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        """The skills as they are on disk now, by root and path; what is broken is left out and logged."""
        return await anyio.to_thread.run_sync(self._read)

    def _read(self) -> list[Skill]:
        found: dict[str, Skill] = {}
        for folder in (folder for root in self._roots for folder in _skill_folders(root)):
            skill = self._read_skill(folder)
            if skill is not None and found.setdefault(skill.frontmatter.name, skill) is not skill:
                logger.warning("a second skill is called %r, in %s; the first one is used", skill.frontmatter.name, folder)
        return list(found.values())

    def _read_skill(self, folder: str) -> FileSkill | None:
        place = os.path.join(folder, MANIFEST)
        try:
            content = read_below(folder, place).decode("utf-8")
        except ValueError as error:
            logger.error("%s: skill left out: %s", place, error)
            return None
        frontmatter = read_frontmatter(content, place)
        if frontmatter is None:
            return None
        name = frontmatter.name
        if name != os.path.basename(folder):
            logger.error("%s: skill left out: it is called %r but its folder %r", place, name, os.path.basename(folder))
            return None
        resources: list[FileSkillResource] = []
        scripts: list[FileSkillScript] = []
        for path in _files(folder, self._depth):
            full = os.path.join(folder, *path.split("/"))
            if not is_manifest(path) and self._resources.has(name, path):
                resources.append(FileSkillResource(name=path, full_path=full, root=folder))
            if self._scripts.has(name, path):
                scripts.append(FileSkillScript(name=path, full_path=full, runner=self._runner, root=folder))
        return FileSkill(frontmatter=frontmatter, content=content, path=folder, resources=resources, scripts=scripts)


class _Offer:
    """Which files of a skill are offered for one purpose."""

    def __init__(self, extensions: Sequence[str], chosen: FileFilter | None) -> None:
        self._extensions = frozenset(extension.lower() for extension in extensions)
        self._chosen = chosen
        self.folders: frozenset[str] | None = None

    def has(self, skill: str, path: str) -> bool:
        folder, _, file = path.rpartition("/")
        if os.path.splitext(file)[1].lower() not in self._extensions or (self.folders is not None and folder not in self.folders):
            return False
        return self._chosen is None or self._chosen(skill, path)


def is_manifest(path: str) -> bool:
    """Whether a path names a `SKILL.md`, at the top or in a sub-folder: none is offered to read."""
    return path.rpartition("/")[2].upper() == MANIFEST.upper()


def _folders(names: Sequence[str] | None) -> frozenset[str] | None:
    if names is None:
        return None
    found: set[str] = set()
    for name in names:
        if not name.strip():
            raise ValueError("A directory name cannot be blank.")
        plain = name.replace("\\", "/")
        parts = [part for part in plain.split("/") if part not in ("", ".")]
        if plain.startswith("/") or ".." in parts or ":" in plain.split("/")[0]:
            logger.warning("folder %r left out: only folders inside the skill are offered", name)
            continue
        found.add("/".join(parts))
    return frozenset(found)


def read_frontmatter(content: str, place: str) -> SkillFrontmatter | None:
    """The frontmatter of a `SKILL.md`, or `None` with an error in the log that names `place`."""
    try:
        value = load_yaml(split_frontmatter(content).header, path=place)
        if not isinstance(value, dict):
            raise ValueError("the frontmatter is no mapping")
        fields = cast("JsonObject", value)
        wrong = [key for key in fields if key not in KNOWN_KEYS and key.lower() in KNOWN_KEYS]
        if wrong:
            raise ValueError(f"write {wrong[0].lower()!r} instead of {wrong[0]!r}")
        texts = {key: _text(fields.get(key), key) for key in KNOWN_KEYS if key != "metadata"}
        return SkillFrontmatter(
            name=texts["name"] or "",
            description=texts["description"] or "",
            license=texts["license"],
            compatibility=texts["compatibility"],
            allowed_tools=texts["allowed-tools"],
            metadata=_metadata(fields.get("metadata"), place),
        )
    except (DocumentError, ValueError) as error:
        logger.error("%s: skill left out: %s", place, error)
        return None


def _text(value: JsonValue, key: str) -> str | None:
    text = _scalar(value)
    if value is not None and text is None:
        raise ValueError(f"{key!r} must be one text")
    return text


def _metadata(value: JsonValue, place: str) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        logger.warning("%s: metadata is no mapping and left out", place)
        return None
    found: dict[str, str] = {}
    for key, item in cast("JsonObject", value).items():
        text = _scalar(item)
        if text is None:
            logger.warning("%s: metadata %r is no text and left out", place, key)
        else:
            found[key] = text
    return found


def _scalar(value: JsonValue) -> str | None:
    """A YAML scalar as text; `None` for anything else and for half characters."""
    if isinstance(value, str):
        return value if not any("\ud800" <= character <= "\udfff" for character in value) else None
    return json.dumps(value) if isinstance(value, bool | int | float) else None


def _skill_folders(root: str) -> Iterator[str]:
    """Folders with a `SKILL.md` below `root`, in path order; not inside one another, and none reached by a link."""
    if not root.strip() or not os.path.isdir(root):
        logger.warning("there is no folder %r for skills", root)
        return
    stack = [(os.path.realpath(root), 0)]
    while stack:
        folder, depth = stack.pop()
        entries = _entries(folder)
        if any(entry.name == MANIFEST and not is_link(entry) for entry in entries):
            yield folder
        elif depth < SKILL_DEPTH:
            inner = [entry.path for entry in entries if not is_link(entry) and entry.is_dir(follow_symlinks=False)]
            stack += [(path, depth + 1) for path in reversed(inner) if not is_junk(os.path.basename(path))]


def _files(folder: str, depth: int) -> list[str]:
    """Regular files of a skill down to `depth`, relative and sorted; links and other kinds are passed over."""
    found: list[str] = []
    stack = [("", 1)]
    while stack and len(found) < MAX_FILES:
        prefix, level = stack.pop()
        for entry in _entries(os.path.join(folder, *prefix.split("/"))):
            if is_link(entry) or is_junk(entry.name):
                continue
            if entry.is_file(follow_symlinks=False):
                found.append(prefix + entry.name)
            elif entry.is_dir(follow_symlinks=False) and level < depth:
                stack.append((f"{prefix}{entry.name}/", level + 1))
    return sorted(found[:MAX_FILES])


def is_link(entry: os.DirEntry[str]) -> bool:
    """Whether an entry leads somewhere else: a link, or a junction of Windows."""
    is_junction = cast("Callable[[], bool] | None", getattr(entry, "is_junction", None))
    return entry.is_symlink() or (is_junction is not None and is_junction())


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        logger.warning("%s cannot be read and is passed over error=%s", folder, error)
        return []
