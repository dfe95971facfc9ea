"""Pydantic models of `skills` in `gateway.json`: how skills are read, from which folders and packages, and which scripts may run."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field, field_validator, model_validator

from gateway.config.base_models import Model
from gateway.config.instruction_template import fill_template

Vendor = Literal["agents", "claude", "codex", "copilot", "cursor", "gemini"]
"""Agent hosts, such as Claude Code, whose folders with skills the gateway can find."""


class ScriptGrant(Model):
    """Permission to run one script of a skill as long as the skill does not change. `moongate skills grant` prints such an entry."""

    skill: str
    """Name of the skill, or its `skill://` URI if several skills have this name."""
    script: str
    """Path of the script in the skill's folder."""
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """Digest of the whole skill. After any change of the skill, the script may not run until it is granted again."""
    network: bool = False
    """Allow the script network access, but no TCP connections to this machine, except DNS."""


class ScriptSettings(Model):
    """Settings for running scripts of skills. By default, no script runs; if enabled, granted scripts run in a sandbox."""

    enabled: bool = False
    """Run granted script files, with the tool `run_skill_script`, if this machine has a sandbox (Linux)."""
    allow: list[ScriptGrant] = Field(default_factory=list[ScriptGrant])
    """The scripts that may run."""
    approval: Literal["always", "never"] = "always"
    """Whether a person must approve each run of a script."""
    environment: list[str] = Field(default_factory=list)
    """Names of the gateway's environment variables to pass to scripts, in addition to PATH, LANG, HOME and TMPDIR."""
    interpreters: dict[str, str] = Field(default_factory=dict)
    """Paths of interpreters by name: `python`, `bash`, `sh`, `node`, `ruby`, `perl`, `php`, `Rscript`. Left out: for `python` the
    gateway's own interpreter, for others found on PATH.
    """
    read_paths: list[str] = Field(default_factory=list)
    """Files and folders that scripts may read in addition to their skill and the system's programs, as absolute paths other than `/`."""
    timeout_seconds: float = Field(default=30, gt=0)
    """Maximum seconds of one run of a script."""
    memory_mb: int = Field(default=512, ge=32)
    """Maximum memory of each process of a script, in MB."""
    disk_mb: int = Field(default=128, ge=1)
    """Maximum disk space of one run of a script, in MB, without the copy of its skill. The files are in memory if the machine allows it."""
    disk_files: int = Field(default=10_000, ge=1)
    """Maximum number of files and folders that one run of a script may create."""
    output_bytes: int = Field(default=262_144, ge=1024)
    """Maximum bytes that are returned of a script's standard output, and of its standard error."""
    concurrency: int = Field(default=4, ge=1)
    """Maximum number of runs of scripts at the same time; more runs wait."""

    @field_validator("read_paths")
    @classmethod
    def _within_reason(cls, paths: list[str]) -> list[str]:
        for path in paths:
            if not os.path.isabs(path) or not os.path.normpath(path).strip("/"):
                raise ValueError(f"{path!r} is not an absolute path of a file or folder below the root; name what scripts need")
        return paths


class SignatureRule(Model):
    """Signature (OpenSSF model signing) that every skill of a folder must have.

    The signer is given by exactly one of `public_key`, `certificates`, and `identity` with `issuer`.
    """

    public_key: str | None = None
    """File with the signer's elliptic-curve public key (PEM)."""
    certificates: list[str] = Field(default_factory=list)
    """Files with the root certificates (PEM) to which the chain of the signer's certificate must lead."""
    identity: str | None = None
    """Identity of the signer at Sigstore: an e-mail address, or the URL of a CI workflow. Needs `issuer`."""
    issuer: str | None = None
    """URL of the OpenID Connect issuer of the signer's `identity`."""
    trust_config: str | None = None
    """File with a Sigstore trust configuration, to verify offline. Left out: Sigstore's public configuration, fetched when needed."""
    file: str = Field(default="skill.oms.sig", pattern=r"^[^/\\]+$")
    """Name of the file with the signature in each skill's folder."""

    @property
    def files(self) -> list[str]:
        """Paths of the files that decide which signatures are valid: public key, trust configuration and certificates."""
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
    """How skills are read and served, and which of their scripts may run."""

    strict: bool = False
    """Reject skills with mistakes that otherwise only cause a warning."""
    refresh_seconds: float = Field(default=5, ge=0)
    """Seconds between checks of the skills' folders for changes; 0: check at every use."""
    vendors: list[Vendor] = Field(default_factory=list[Vendor])
    """Also serve the skills in the folders of these agent hosts, in the project and in the user's home folder."""
    packages: list[str] = Field(default_factory=list)
    """Also serve the skills in the folder `skills` of these installed Python packages."""
    signatures: dict[str, SignatureRule] = Field(default_factory=dict[str, SignatureRule])
    """Required signatures, by folder in `expose.skills`. Skills in these folders without a valid signature are not served."""
    instruction_template: str | None = None
    """Text that tells agents which skills exist. `{skills}` becomes the list; write other braces twice. Left out: the built-in text."""
    objects: list[str] = Field(default_factory=list)
    """Also serve skills that are Python objects: `module`, or `module:name` of a skill, a class of skills, a list of skills or a source of
    skills.
    """
    scripts: ScriptSettings = Field(default_factory=ScriptSettings)
    """Which scripts of skills may run, and their limits."""

    @field_validator("instruction_template")
    @classmethod
    def _usable(cls, template: str | None) -> str | None:
        """Return `instruction_template` unchanged.

        Raises `ValueError` if the template is invalid, so that the user sees the mistake when the configuration is loaded, before an agent
        needs the template.
        """
        if template is not None:
            fill_template(template, "")
        return template
