"""What is known of a skill: its diagnostics, its files and the skill itself.

Plain frozen data, shared freely between threads and calls. Reads nothing and judges nothing: `parser` fills in
the document, `files` the facts of the disk, `index` the names under which both are served.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from gateway.diagnostics import Diagnostic, Verdict
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.skills import MAX_SKILL_BYTES as MAX_SKILL_BYTES
from gateway.policy.skills import MAX_SKILL_FILES as MAX_SKILL_FILES

MANIFEST = "SKILL.md"
"""The file that makes a folder a skill; always served under this spelling."""

Stamp = tuple[int, int, int, int]
"""Identity of a file's content without reading it: size, mtime in ns, inode, ctime in ns."""


@dataclass(frozen=True, slots=True)
class SkillReport:
    """The verdict on one skill folder, or on a root folder that cannot be used (`name` is empty then)."""

    path: str
    name: str
    verdict: Verdict
    listed: bool
    """False also for an accepted skill that only the tools can serve."""
    diagnostics: tuple[Diagnostic, ...]

    def to_json(self) -> JsonObject:
        """The object that `skills check --json` prints."""
        return {
            "path": self.path,
            "name": self.name,
            "verdict": self.verdict,
            "listed": self.listed,
            "diagnostics": [d.to_json() for d in self.diagnostics],
        }


@dataclass(frozen=True, slots=True)
class SkillDocument:
    """A parsed `SKILL.md`. Never the product of running anything."""

    frontmatter: JsonMapping
    """Every field as written, read as YAML 1.2 core; JSON values."""
    name: str
    """`""` when there is no usable one."""
    description: str
    text: str
    """The whole file, decoded; empty where it was not read."""
    body_start: int
    """Where the body starts in `text`, in characters."""
    conformant: bool
    """Whether the extension may list it: the YAML needed no repair and the name is legal."""
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def body(self) -> str:
        """The Markdown after the frontmatter, exactly as written."""
        return self.text[self.body_start :]


@dataclass(frozen=True, slots=True)
class SkillFile:
    """One served file of a skill."""

    path: str
    """Relative to the skill, `/`-separated; the key by which clients name it."""
    segments: tuple[str, ...]
    """Where the bytes are, relative to the root; no segment is a link."""
    stamp: Stamp
    digest: str
    """`sha256:` and 64 hex digits, over the raw bytes; empty for what is made anew at each read (then the size says nothing)."""
    mime_type: str
    is_text: bool
    """Whether the bytes are strict UTF-8."""
    is_script: bool
    is_settled: bool
    """False when it was hashed so soon after a change that an equal stamp proves nothing."""

    @property
    def size(self) -> int:
        """In bytes."""
        return self.stamp[0]

    @property
    def is_dynamic(self) -> bool:
        """Whether its bytes are made when they are read, so that nothing is known of them before."""
        return not self.digest


@dataclass(frozen=True, slots=True)
class SkillFunction:
    """A script that is a function of this process, not a file."""

    name: str
    description: str
    parameters: JsonMapping | None
    """Its arguments as JSON Schema; `None` for none."""


@dataclass(frozen=True, slots=True)
class Skill:
    """One served skill, under its final names."""

    id: str
    """Unique in the index: the name, or `<prefix>/<name>` where another skill has that name."""
    key: tuple[str, str]
    """Root folder and path below it: the identity of the folder on disk. For a skill in no folder its home and its id there."""
    origin: str
    """Where it comes from in words a client may see: root folder's name and path below it."""
    root_uri: str
    """`skill://…` without a trailing slash; `""` for a skill that only the tools serve."""
    document: SkillDocument
    files: Mapping[str, SkillFile]
    diagnostics: tuple[Diagnostic, ...] = ()
    entry: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """`{uri, frontmatter, resources}` of SEP-2640, ready to send; empty when not listed."""
    functions: tuple[SkillFunction, ...] = ()
    """Scripts that run in this process."""
    in_code: bool = False
    """Whether a program wrote it without a file, so that `load_skill` gives its fields and instructions instead of a file."""
    is_remote: bool = False
    """Whether a server behind this gateway publishes it: its URIs are that server's to answer."""

    @property
    def name(self) -> str:
        """The frontmatter's name, or the folder's as a legal name where that one is unusable."""
        return self.id.rpartition("/")[2]

    @property
    def is_listed(self) -> bool:
        """Whether it has URIs: listed by the extension and as resources."""
        return bool(self.root_uri)

    @property
    def is_for_models(self) -> bool:
        """False for `disable-model-invocation: true`: kept from tools, search and catalogue."""
        return self.document.frontmatter.get("disable-model-invocation") is not True

    @property
    def manifest(self) -> SkillFile:
        """The file behind `SKILL.md`."""
        return self.files[MANIFEST]

    @property
    def uri(self) -> str | None:
        """URI of `SKILL.md`; `None` for a skill that only the tools serve."""
        return f"{self.root_uri}/{MANIFEST}" if self.root_uri else None
