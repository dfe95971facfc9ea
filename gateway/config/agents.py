"""Pydantic models of `agents` in `gateway.json`: settings of every agent unless its file overrides them.

Only shapes and defaults are defined here. An agent file (`agents.definition`) has the same keys, written with dashes.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from gateway.config.base_models import Model
from gateway.json_types import JsonValue


class FileAccess(Model):
    """Tools for the files of a folder."""

    root: str = Field(min_length=1)
    """The folder, relative to the file that names it; created if missing. Links inside it are not followed."""
    access: Literal["read", "write", "delete"] = "read"
    """`read`: list, read and search; `write`: also save; `delete`: also delete."""


class FlowSecurity(Model):
    """Limits calls of tools after the model has read content that outsiders may have written.

    Lists are globs over `<source>/<tool>`. Experimental.
    """

    trusted: list[str] = Field(default_factory=list)
    """Tools whose results outsiders cannot have written. Results of all other tools count as untrusted."""
    untrusted: list[str] = Field(default_factory=list)
    """Tools whose results outsiders may have written; wins over `trusted`."""
    private: list[str] = Field(default_factory=list)
    """Tools whose results are confidential."""
    sinks: list[str] | None = None
    """Tools with effects outside. Left out: every tool except those in `accepts_untrusted`."""
    accepts_untrusted: list[str] = Field(default_factory=list)
    """Tools that may be called even after untrusted content."""
    public_sinks: list[str] = Field(default_factory=list)
    """Tools that may only receive public content."""
    on_violation: Literal["ask", "refuse"] = "ask"
    """`ask` the user of the call, if that is possible, or `refuse`."""


MiddlewareEntry = str | dict[str, dict[str, JsonValue]]
"""`module:name`, or `module:name` with constructor arguments."""


class AgentSettings(Model):
    """Settings of every agent that runs in this gateway."""

    middleware: list[MiddlewareEntry] = Field(default_factory=list[MiddlewareEntry])
    """Middleware and lifecycle hooks, as `module:name` or `{module:name: arguments}`. They wrap those that an agent's file names."""
    files: FileAccess | None = None
    """A folder for every agent whose file names none."""
    security: FlowSecurity | None = None
    """Rules for every agent whose file has none. Experimental."""

    @field_validator("middleware")
    @classmethod
    def _check(cls, value: list[MiddlewareEntry]) -> list[MiddlewareEntry]:
        return checked_middleware(value)


def reference_of(entry: MiddlewareEntry) -> str:
    """Return the `module:name` that an entry names."""
    return entry if isinstance(entry, str) else next(iter(entry))


def checked_middleware(entries: list[MiddlewareEntry]) -> list[MiddlewareEntry]:
    """Return `entries` unchanged. Raises `ValueError` if one of them does not name exactly one object."""
    for entry in entries:
        if not isinstance(entry, str) and len(entry) != 1:
            raise ValueError("an entry with arguments names one object: `{package.module:name: {argument: value}}`")
        checked_reference(entry if isinstance(entry, str) else next(iter(entry)))
    return entries


def checked_reference(reference: str) -> str:
    """Return `reference` unchanged. Raises `ValueError` if it is not `package.module:name`."""
    module, _, name = reference.partition(":")
    if not module or not name:
        raise ValueError(f"{reference!r} names no object; write `package.module:name`")
    return reference
