"""Models of `agents` in `gateway.json`: what holds for every agent unless its file says otherwise.

Shapes and defaults only. The same keys in an agent file (`agents.definition`) are these with dashes.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from gateway.config.base import Model


class FileAccess(Model):
    """Tools for the files of a folder."""

    root: str = Field(min_length=1)
    """The folder, relative to the file that names it; made where it is missing. No link in it is followed."""
    access: Literal["read", "write", "delete"] = "read"
    """`read`: look and search; `write`: also save; `delete`: also delete."""


class FlowSecurity(Model):
    """What may be called after content that somebody outside may have written; globs over `<source>/<tool>`. Experimental."""

    trusted: list[str] = Field(default_factory=list)
    """Tools whose results nobody outside can have written. All others' results count as untrusted."""
    untrusted: list[str] = Field(default_factory=list)
    """Tools whose results somebody outside may have written; wins over `trusted`."""
    private: list[str] = Field(default_factory=list)
    """Tools whose results are confidential."""
    sinks: list[str] | None = None
    """Tools that act on the world; left out: all but those that may be called after untrusted content all the same."""
    accepts_untrusted: list[str] = Field(default_factory=list)
    """Tools that may be called after untrusted content all the same."""
    public_sinks: list[str] = Field(default_factory=list)
    """Tools through which only public content may leave."""
    on_violation: Literal["ask", "refuse"] = "ask"
    """`ask` the person of the call, where that is possible, or `refuse`."""


class AgentSettings(Model):
    """What holds for every agent that runs here."""

    middleware: list[str] = Field(default_factory=list)
    """Middleware and lifecycle hooks, as `module:name`; around what an agent's file names."""
    files: FileAccess | None = None
    """A folder for every agent whose file names none."""
    security: FlowSecurity | None = None
    """Rules for every agent whose file has none. Experimental."""

    @field_validator("middleware")
    @classmethod
    def _check(cls, value: list[str]) -> list[str]:
        return [checked_reference(reference) for reference in value]


def checked_reference(reference: str) -> str:
    """`reference`, if it names an object of a module. Raises `ValueError`."""
    module, _, name = reference.partition(":")
    if not module or not name:
        raise ValueError(f"{reference!r} names no object; write `package.module:name`")
    return reference
