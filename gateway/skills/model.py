"""The model of a skill: its parsed `SKILL.md`, its files, its functions, its diagnostics, and the names it is served under.

Every module of the package uses these types. They are frozen and shared between threads and calls. `parser` fills the
document, `reader`, `remote` and `code` fill the files, `index` assigns the ids and URIs.
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
"""File that makes a folder a skill. Clients always see this spelling."""

Key = tuple[str, str]
"""Identity of a skill: its root folder and its path below that folder, or the id of its backend and its id in that backend."""

Stamp = tuple[int, int, int, int]
"""Size, mtime in ns, inode and ctime in ns of a file: equal stamps mean equal content, so the file need not be read."""


def is_manifest(path: str) -> bool:
    """Return whether a path names a `SKILL.md`, in any case and in any folder."""
    return path.rpartition("/")[2].upper() == MANIFEST.upper()


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


@dataclass(frozen=True, slots=True)
class SkillReport:
    """The verdict on one skill, or on a root folder that cannot be used. For a root folder, `name` is empty."""

    path: str
    name: str
    verdict: Verdict
    listed: bool
    """Whether `skills/list` has the skill. An accepted skill that only the tools serve is not listed."""
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
    """Return `source`, `where` and `message` of each rejected skill, the form in which a gateway lists files that it could not load."""
    return [
        {"source": "skill", "where": report.path, "message": "; ".join(d.message for d in report.diagnostics if d.level == "error")}
        for report in reports
        if report.verdict == "rejected"
    ]


@dataclass(frozen=True, slots=True)
class SkillDocument:
    """A parsed `SKILL.md`. The defaults are those of a file that could not be parsed."""

    frontmatter: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """Every field as written, read as YAML 1.2 core; JSON values."""
    name: str = ""
    """The skill's name in the frontmatter; empty if the frontmatter has no usable name."""
    description: str = ""
    text: str = ""
    """The whole file, decoded; empty if only its frontmatter is known."""
    body_start: int = 0
    """Offset of the body in `text`, in characters."""
    conformant: bool = False
    """Whether `skills/list` may list the skill: the YAML needed no repair and the name is legal."""
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def body(self) -> str:
        """The Markdown after the frontmatter, exactly as written."""
        return self.text[self.body_start :]


@dataclass(frozen=True, slots=True)
class SkillFile:
    """One served file of a skill."""

    path: str
    """Path of the file relative to the skill, with `/` as separator. Clients name the file by this path."""
    segments: tuple[str, ...]
    """Location of the bytes: path segments below the root folder, none of them a link; or the URI on a server."""
    stamp: Stamp
    digest: str
    """`sha256:` and 64 hexadecimal digits over the raw bytes. Empty for a file whose bytes are made at each read; its size is then
    unknown."""
    mime_type: str
    is_text: bool = True
    """Whether the content of the file is valid UTF-8."""
    is_script: bool = False
    is_settled: bool = True
    """False if the file was hashed so soon after a change that an equal stamp (times and size) does not prove equal content."""

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self.stamp[0]

    @property
    def is_dynamic(self) -> bool:
        """Whether the content is made at each read, so that size and digest are unknown before the read."""
        return not self.digest

    def with_content(self, data: bytes) -> SkillFile:
        """Return a copy of this file entry with the size, digest and text flag of the content `data`."""
        return replace(self, stamp=(len(data), *self.stamp[1:]), digest=digest_of(data), is_text=is_utf8(data))


@dataclass(frozen=True, slots=True)
class SkillFunction:
    """A script of a skill that is a Python function in the gateway's process instead of a file."""

    name: str
    description: str
    parameters: JsonMapping | None
    """JSON Schema of the arguments; `None` if the function takes no arguments."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill with its content, and with the id and URIs under which it is served."""

    id: str
    """Id of the skill, unique in the index: its name, or `<prefix>/<name>` if another skill has that name."""
    key: Key
    origin: str
    """Where the skill comes from, for clients: root folder's name and path below it, server's name, or reference of a Python object."""
    root_uri: str
    """URI of the skill's root folder, `skill://…` without a trailing slash; empty for a skill that only the tools serve."""
    document: SkillDocument
    files: Mapping[str, SkillFile]
    diagnostics: tuple[Diagnostic, ...] = ()
    entry: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """`{uri, frontmatter, resources}` of SEP-2640, ready to send; empty for a skill that is not listed."""
    functions: tuple[SkillFunction, ...] = ()
    """Scripts of the skill that are functions and run in this process; empty for a skill in a folder."""
    in_code: bool = False
    """Whether the skill is defined in code without a file; `load_skill` then shows its fields and instructions instead of a file."""
    is_remote: bool = False
    """Whether an upstream server publishes the skill. That server then answers requests for its URIs."""

    @property
    def name(self) -> str:
        """The name in the frontmatter; if that is unusable, a legal name made of the folder's name."""
        return self.id.rpartition("/")[2]

    @property
    def is_listed(self) -> bool:
        """Whether the skill has URIs, so that `skills/list` and `resources/list` have it."""
        return bool(self.root_uri)

    @property
    def is_dynamic(self) -> bool:
        """Whether the skill's entry lists no files, so that the skill may have any file."""
        return self.entry.get("resources") == "dynamic"

    @property
    def is_for_models(self) -> bool:
        """Whether models may see the skill. False for `disable-model-invocation: true`: tools, search and skill lists then leave it out."""
        return self.document.frontmatter.get("disable-model-invocation") is not True

    @property
    def manifest(self) -> SkillFile:
        """The entry of the skill's `SKILL.md` in `files`."""
        return self.files[MANIFEST]

    @property
    def uri(self) -> str | None:
        """URI of `SKILL.md`; `None` for a skill that only the tools serve."""
        return f"{self.root_uri}/{MANIFEST}" if self.root_uri else None
