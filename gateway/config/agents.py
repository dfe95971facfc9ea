"""Models of `agents` in `gateway.json`: what holds for every agent unless its file says otherwise.

Shapes and defaults only. The same keys in an agent file (`agents.definition`) are these with dashes.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from gateway.config.base import Model
from gateway.json_types import JsonValue


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


MiddlewareEntry = str | dict[str, dict[str, JsonValue]]
"""`module:name`, or that with the arguments it is made with."""


class AgentSettings(Model):
    """What holds for every agent that runs here."""

    middleware: list[MiddlewareEntry] = Field(default_factory=list[MiddlewareEntry])
    """Middleware and lifecycle hooks, as `module:name` or `{module:name: arguments}`; around what an agent's file names."""
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
    """`entries`, if each names one object. Raises `ValueError`."""
    for entry in entries:
        if not isinstance(entry, str) and len(entry) != 1:
            raise ValueError("an entry with arguments names one object: `{package.module:name: {argument: value}}`")
        checked_reference(entry if isinstance(entry, str) else next(iter(entry)))
    return entries


def checked_reference(reference: str) -> str:
    """`reference`, if it names an object of a module. Raises `ValueError`."""
    module, _, name = reference.partition(":")
    if not module or not name:
        raise ValueError(f"{reference!r} names no object; write `package.module:name`")
    return reference
