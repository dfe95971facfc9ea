"""Pydantic models of `skills` in `gateway.json`: how skills are read, where they come from, and which scripts may run."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field, field_validator, model_validator

from gateway.config.base_models import Model
from gateway.config.instruction_template import fill_template

Vendor = Literal["agents", "claude", "codex", "copilot", "cursor", "gemini"]
"""Hosts whose folders of skills are known."""


class ScriptGrant(Model):
    """One script that may run, in the state in which it was reviewed; `moongate skills grant` prints it."""

    skill: str
    """The skill's name, or its `skill://` URI if several skills share the name."""
    script: str
    """Path of the script in the skill."""
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """Digest of the whole skill: any change disables the script until it is granted again."""
    network: bool = False
    """Allow network access, except to this machine."""


class ScriptSettings(Model):
    """Scripts of skills: off by default; when enabled, only granted scripts run, in a sandbox."""

    enabled: bool = False
    """Offer `run_skill_script` if this machine has a sandbox (Linux)."""
    allow: list[ScriptGrant] = Field(default_factory=list[ScriptGrant])
    """The scripts that may run."""
    approval: Literal["always", "never"] = "always"
    """Whether a person approves each run."""
    environment: list[str] = Field(default_factory=list)
    """Environment variables of the gateway to pass to scripts, in addition to PATH, LANG, HOME and TMPDIR."""
    interpreters: dict[str, str] = Field(default_factory=dict)
    """Paths of interpreters by name: `python`, `bash`, `sh`, `node`, `ruby`, `perl`, `php`, `Rscript`; left out: found on PATH."""
    read_paths: list[str] = Field(default_factory=list)
    """Further files and folders that scripts may read: absolute paths, and not the whole file system."""
    timeout_seconds: float = Field(default=30, gt=0)
    """Timeout of one run."""
    memory_mb: int = Field(default=512, ge=32)
    """Memory of each process."""
    disk_mb: int = Field(default=128, ge=1)
    """Disk space of one run beside the copy of its skill; kept in memory if the machine allows it."""
    disk_files: int = Field(default=10_000, ge=1)
    """Files and folders that one run may create."""
    output_bytes: int = Field(default=262_144, ge=1024)
    """Bytes kept of standard output, and of standard error."""
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
    """Required signature of every skill of a folder (OpenSSF model signing): one of a key, certificates and an identity."""

    public_key: str | None = None
    """File with an elliptic-curve public key (PEM)."""
    certificates: list[str] = Field(default_factory=list)
    """Files with the certificates (PEM) to which the signer's certificate must lead."""
    identity: str | None = None
    """The signer at Sigstore: an e-mail address or a workflow's URL; with `issuer`."""
    issuer: str | None = None
    """OpenID Connect issuer of that identity."""
    trust_config: str | None = None
    """File with Sigstore's trust configuration, to verify without a network. Left out: the public one, fetched when needed."""
    file: str = Field(default="skill.oms.sig", pattern=r"^[^/\\]+$")
    """Name of the signature's file in each skill."""

    @property
    def files(self) -> list[str]:
        """The files that decide which signatures are valid."""
        return [file for file in (self.public_key, self.trust_config, *self.certificates) if file is not None]

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
    """Reject skills that would be served with a warning."""
    refresh_seconds: float = Field(default=5, ge=0)
    """Seconds between checks of the folders for changes; 0 checks at every use."""
    vendors: list[Vendor] = Field(default_factory=list[Vendor])
    """Also serve the skills in these hosts' folders, of the project and of the user."""
    packages: list[str] = Field(default_factory=list)
    """Also serve the folder `skills` of these installed Python packages."""
    signatures: dict[str, SignatureRule] = Field(default_factory=dict[str, SignatureRule])
    """Required signatures by folder of `expose.skills`; unsigned skills are not served."""
    instruction_template: str | None = None
    """Text that advertises skills to agents, with `{skills}` and every other brace doubled. Left out: the built-in one."""
    objects: list[str] = Field(default_factory=list)
    """Also serve skills that are Python objects: `module`, or `module:name` of a skill, a class of one, a list or a source."""
    scripts: ScriptSettings = Field(default_factory=ScriptSettings)
    """Scripts."""

    @field_validator("instruction_template")
    @classmethod
    def _usable(cls, template: str | None) -> str | None:
        """Reject an invalid template when the configuration is loaded, not when an agent first needs it."""
        if template is not None:
            fill_template(template, "")
        return template
