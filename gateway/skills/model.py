"""The types that describe a skill: its parsed `SKILL.md`, its files, its functions, its diagnostics, and its id and URIs.

Every module of the package `skills` uses these types. They are frozen and shared between threads and calls. `parser` creates the document,
`reader`, `remote` and `code` list the files, and `index` assigns the ids and URIs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from gateway.diagnostics import Diagnostic, Verdict
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.skill_policy import MAX_SKILL_BYTES as MAX_SKILL_BYTES
from gateway.policy.skill_policy import MAX_SKILL_FILES as MAX_SKILL_FILES

MANIFEST = "SKILL.md"
"""Name of the file that makes a folder a skill. Clients always see this spelling, even if the disk has another one."""

Key = tuple[str, str]
"""Identity of a skill: its root folder (the folder searched for skills) and its path below that folder; or, for a skill that is not in a
folder, the id of the backend that provides it and its id in that backend."""

Stamp = tuple[int, int, int, int]
"""Size, mtime in ns, inode and ctime in ns of a file. If the stamp of a settled file (`SkillFile.is_settled`) is unchanged, the content is
too, and the file need not be read again."""


def is_manifest(path: str) -> bool:
    """Return whether the file name in `path` is `SKILL.md`, in upper or lower case; the path may contain folders."""
    return path.rpartition("/")[2].upper() == MANIFEST.upper()


def spelled(name: str, known: Iterable[str]) -> str | None:
    """Return the name in `known`, a list of files or scripts, to which `name` from a model refers; `None` if no name fits.

    A name that differs only in upper and lower case is returned if no name is equal.
    """
    names, folded = list(known), name.casefold()
    return name if name in names else next((other for other in names if other.casefold() == folded), None)


def digest_of(data: bytes) -> str:
    """Return the SHA-256 digest of `data` as `sha256:` and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def is_utf8(data: bytes) -> bool:
    """Return whether the bytes are valid UTF-8."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def verdict_of(diagnostics: Iterable[Diagnostic], *, strict: bool = False) -> Verdict:
    """Return whether diagnostics mean that a skill is accepted, accepted with a warning, or rejected. `strict` rejects on warnings."""
    levels = {d.level for d in diagnostics}
    if "error" in levels or (strict and "warning" in levels):
        return "rejected"
    return "accepted_with_warning" if "warning" in levels else "accepted"


@dataclass(frozen=True, slots=True)
class SkillReport:
    """Report about one skill: whether it was accepted or rejected, and the diagnostics with the reasons.

    A report may also be about something from which no skill can be read: a folder searched for skills, a path or a Python object. The
    report's `name` is then empty.
    """

    path: str
    name: str
    verdict: Verdict
    listed: bool
    """Whether `skills/list` includes the skill. An accepted skill may be unlisted; then only the skill tools and its prompt serve it."""
    diagnostics: tuple[Diagnostic, ...]

    def to_json(self) -> JsonObject:
        """Return the object that `moongate skills check --json` prints."""
        return {
            "path": self.path,
            "name": self.name,
            "verdict": self.verdict,
            "listed": self.listed,
            "diagnostics": [d.to_json() for d in self.diagnostics],
        }


def rejected_skills(reports: Iterable[SkillReport]) -> list[JsonObject]:
    """Return the rejected skills in the form in which a gateway reports files that it cannot load: `source`, `where` (path), `message`."""
    return [
        {"source": "skill", "where": report.path, "message": "; ".join(d.message for d in report.diagnostics if d.level == "error")}
        for report in reports
        if report.verdict == "rejected"
    ]


@dataclass(frozen=True, slots=True)
class SkillDocument:
    """A parsed `SKILL.md`: YAML frontmatter and Markdown. The default values are those of a file that could not be parsed."""

    frontmatter: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """All fields of the frontmatter as JSON values, read as YAML 1.2 (core schema) and otherwise unchanged."""
    name: str = ""
    """The skill's name in the frontmatter; empty if the frontmatter has no usable name."""
    description: str = ""
    text: str = ""
    """The whole file, decoded as UTF-8; empty if it cannot be parsed, or if only its frontmatter is known (a remote server's skill)."""
    body_start: int = 0
    """Offset in `text`, in characters, at which the Markdown after the frontmatter begins."""
    conformant: bool = False
    """Whether `skills/list` may list the skill: its frontmatter is valid YAML with a legal name and only values that can be sent as JSON,
    and its text has no control characters."""
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def body(self) -> str:
        """The Markdown after the frontmatter, exactly as written."""
        return self.text[self.body_start :]


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A file of a skill as the gateway lists and serves it, without its content."""

    path: str
    """Path of the file relative to the skill, with `/` as separator. Clients name the file by this path."""
    segments: tuple[str, ...]
    """Location of the content: path segments below the folder searched for skills, with links resolved; for a file on a remote
    server, its URI as the only item; empty for a Python object."""
    stamp: Stamp
    digest: str
    """`sha256:` and 64 hexadecimal digits over the raw bytes. Empty for a file whose content is made at each read, or that a remote server
    serves without listing its digest; the size is then unknown."""
    mime_type: str
    is_text: bool = True
    """Whether the content of the file is valid UTF-8; true as long as the content is not known."""
    is_script: bool = False
    is_settled: bool = True
    """Whether an equal stamp (times and size) proves equal content. False if the file was hashed less than two seconds after it changed."""

    @property
    def size(self) -> int:
        """Size of the file in bytes; 0 if it is not known."""
        return self.stamp[0]

    @property
    def is_dynamic(self) -> bool:
        """Whether size and digest are unknown before a read: the content is made at each read, or a remote server does not list them."""
        return not self.digest

    def with_content(self, data: bytes) -> SkillFile:
        """Return a copy of this description of a file, with the size, digest and `is_text` of the content `data`."""
        return replace(self, stamp=(len(data), *self.stamp[1:]), digest=digest_of(data), is_text=is_utf8(data))


@dataclass(frozen=True, slots=True)
class SkillMember:
    """A resource or a script of a skill, as described to models."""

    name: str
    """Name by which a model reads the resource or runs the script."""
    description: str
    parameters: JsonMapping | None = None
    """JSON Schema of a script's arguments; `None` for a resource, and for a script without arguments."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill: instructions for models with their files and scripts, and the id and URIs under which the gateway serves them."""

    id: str
    """Id of the skill, unique in the index: its name, or `<prefix>/<name>` if another skill has that name; for a remote server's skill,
    the URI of its folder without `skill://`."""
    key: Key
    origin: str
    """Origin of the skill, as shown to clients: the name of the folder searched for skills and the path below it, the name of a remote
    server, or the reference of a Python object."""
    root_uri: str
    """URI of the skill's folder, `skill://…` without a trailing slash; empty for a skill that has no URIs and is served only by tools and
    prompts."""
    document: SkillDocument
    files: Mapping[str, SkillFile]
    diagnostics: tuple[Diagnostic, ...] = ()
    entry: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """Entry for `skills/list`, `{uri, frontmatter, resources}` (SEP-2640). For a skill that is not listed, empty or, if it is remote,
    without `uri` and `frontmatter`."""
    functions: tuple[SkillMember, ...] = ()
    """Scripts of the skill that are Python functions and run in this process; empty for a skill in a folder or on a remote server."""
    in_code: bool = False
    """Whether the skill is a Python object of a class (`ClassSkill`, `InlineSkill`) that has instructions but no `SKILL.md`. The tool
    `load_skill` then returns its fields and instructions instead of a file."""
    is_remote: bool = False
    """Whether a remote MCP server publishes the skill. Requests for its URIs are then answered by that server."""

    @property
    def name(self) -> str:
        """The name in the frontmatter; for a skill in a folder that `skills/list` cannot list, a legal name made of the folder's name."""
        return self.id.rpartition("/")[2]

    @property
    def is_listed(self) -> bool:
        """Whether the skill has URIs. `skills/list` and `resources/list` then include it, unless it is remote and has no valid entry."""
        return bool(self.root_uri)

    @property
    def is_dynamic(self) -> bool:
        """Whether the skill's entry has `dynamic` instead of a list of files. The skill may then have files that are not in `files`."""
        return self.entry.get("resources") == "dynamic"

    @property
    def is_for_models(self) -> bool:
        """Whether models may see the skill. False if its frontmatter has `disable-model-invocation: true`.

        The skill tools, search results and lists of skills for models then leave the skill out.
        """
        return self.document.frontmatter.get("disable-model-invocation") is not True

    @property
    def manifest(self) -> SkillFile:
        """The description (path, size, digest) of the skill's `SKILL.md`, from `files`."""
        return self.files[MANIFEST]

    @property
    def uri(self) -> str | None:
        """URI of the skill's `SKILL.md`; `None` for a skill that has no URIs and is served only by tools and prompts."""
        return f"{self.root_uri}/{MANIFEST}" if self.root_uri else None
