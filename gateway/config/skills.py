"""The part `skills` of `gateway.json`: how skills are read, from where besides folders, and which scripts may run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.config.base import Model

Vendor = Literal["agents", "claude", "codex", "copilot", "cursor", "gemini"]
"""Hosts whose folders of skills are known."""


class ScriptGrant(Model):
    """One script that may run, as it was when it was looked at; `moongate skills grant` prints it."""

    skill: str
    """The skill's name, or its `skill://` URI where names are shared."""
    script: str
    """Path of the script in the skill."""
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """Of everything in the skill: any change to it disables the script until it is granted again."""
    network: bool = False
    """Let it use the network."""


class ScriptSettings(Model):
    """Running scripts of skills: off, and then still only those that are granted, in a sandbox."""

    enabled: bool = False
    """Offer `run_skill_script` where this machine has a sandbox (Linux)."""
    allow: list[ScriptGrant] = Field(default_factory=list[ScriptGrant])
    """The scripts that may run."""
    approval: Literal["always", "never"] = "always"
    """Whether a person approves each run."""
    environment: list[str] = Field(default_factory=list)
    """Environment variables of the gateway that scripts get; otherwise they have PATH, LANG, HOME and TMPDIR."""
    interpreters: dict[str, str] = Field(default_factory=dict)
    """Programs that run scripts, by name: `python`, `bash`, `sh`, `node`, `ruby`, `perl`, `php`, `Rscript`; left out: found on PATH."""
    read_paths: list[str] = Field(default_factory=list)
    """Further files and folders that scripts may read."""
    timeout_seconds: float = Field(default=30, gt=0)
    """Time of one run."""
    memory_mb: int = Field(default=512, ge=32)
    """Memory of each process."""
    output_bytes: int = Field(default=262_144, ge=1024)
    """Kept of each of standard output and standard error."""
    concurrency: int = Field(default=4, ge=1)
    """Runs at once; more wait."""


class SkillSettings(Model):
    """How skills are read and served."""

    strict: bool = False
    """Refuse what would be served with a warning."""
    refresh_seconds: float = Field(default=5, ge=0)
    """How often the folders are looked at for changes; 0 looks at every use."""
    vendors: list[Vendor] = Field(default_factory=list[Vendor])
    """Also serve the skills in these hosts' folders, of the project and of the user."""
    packages: list[str] = Field(default_factory=list)
    """Also serve the folder `skills` of these installed Python packages."""
    objects: list[str] = Field(default_factory=list)
    """Also serve skills that are Python objects: `module`, or `module:name` of a skill, a class of one, a list or a source."""
    scripts: ScriptSettings = Field(default_factory=ScriptSettings)
    """Scripts."""
