"""The part `skills` of `gateway.json`: how skills are read, from where besides folders, and which scripts may run."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field, field_validator, model_validator

from gateway.config.base import Model
from gateway.config.templates import fill_template

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
    """Let it use the network, but nothing on this machine."""


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
    """Further files and folders that scripts may read: absolute paths, and not the whole file system."""
    timeout_seconds: float = Field(default=30, gt=0)
    """Time of one run."""
    memory_mb: int = Field(default=512, ge=32)
    """Memory of each process."""
    disk_mb: int = Field(default=128, ge=1)
    """What one run may write in all, beside the copy of its skill; kept in memory where the machine allows it."""
    disk_files: int = Field(default=10_000, ge=1)
    """Files and folders that one run may make."""
    output_bytes: int = Field(default=262_144, ge=1024)
    """Kept of each of standard output and standard error."""
    concurrency: int = Field(default=4, ge=1)
    """Runs at once; more wait."""

    @field_validator("read_paths")
    @classmethod
    def _within_reason(cls, paths: list[str]) -> list[str]:
        for path in paths:
            if not os.path.isabs(path) or not os.path.normpath(path).strip("/"):
                raise ValueError(f"{path!r} is not an absolute path of a file or folder below the root; name what scripts need")
        return paths


class SignatureRule(Model):
    """Who must have signed every skill of a folder (OpenSSF model signing): one of a key, certificates and an identity."""

    public_key: str | None = None
    """File with an elliptic-curve public key (PEM)."""
    certificates: list[str] = Field(default_factory=list)
    """Files with the certificates (PEM) that the signer's one must lead to."""
    identity: str | None = None
    """Who signed at Sigstore: an e-mail address or a workflow's URL; with `issuer`."""
    issuer: str | None = None
    """OpenID Connect issuer of that identity."""
    trust_config: str | None = None
    """File with Sigstore's trust configuration, to verify without a network; left out: the public one, fetched when needed."""
    file: str = Field(default="skill.oms.sig", pattern=r"^[^/\\]+$")
    """Name of the signature's file in each skill."""

    @model_validator(mode="after")
    def _one_signer(self) -> SignatureRule:
        ways = [self.public_key is not None, bool(self.certificates), self.identity is not None]
        if sum(ways) != 1:
            raise ValueError("give one of publicKey, certificates and identity")
        if (self.identity is None) != (self.issuer is None):
            raise ValueError("identity and issuer go together")
        return self


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
    signatures: dict[str, SignatureRule] = Field(default_factory=dict[str, SignatureRule])
    """Folder of `expose.skills` → who must have signed every skill in it; others are not served."""
    instruction_template: str | None = None
    """How agents are told of their skills: a text with `{skills}`, every other brace doubled; left out: the built-in one."""
    objects: list[str] = Field(default_factory=list)
    """Also serve skills that are Python objects: `module`, or `module:name` of a skill, a class of one, a list or a source."""
    scripts: ScriptSettings = Field(default_factory=ScriptSettings)
    """Scripts."""

    @field_validator("instruction_template")
    @classmethod
    def _usable(cls, template: str | None) -> str | None:
        """Said when the configuration is loaded, not when an agent first needs it (requirements 110)."""
        if template is not None:
            fill_template(template, "")
        return template
