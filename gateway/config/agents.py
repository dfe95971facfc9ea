"""Pydantic models of `agents` in `gateway.json`: settings for all agents, which an agent's file may override.

They define only shapes and defaults. An agent file (`agents.definition`) has the same keys, written with dashes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from gateway.config.base_models import Model
from gateway.json_types import JsonValue


class FileAccess(Model):
    """A folder whose files an agent can use through file tools."""

    root: str = Field(min_length=1)
    """The folder, relative to the file that contains this key; created if missing. Links inside it are not followed."""
    access: Literal["read", "write", "delete"] = "read"
    """What the tools can do. `read`: list, read and search files; `write`: also save files; `delete`: also delete files."""


class FlowSecurity(Model):
    """Rules that limit an agent's tool calls after the model has read content that outsiders may have written. Experimental.

    Each list contains globs over `<source>/<tool>`.
    """

    trusted: list[str] = Field(default_factory=list)
    """Tools whose results outsiders cannot have written. Results of all other tools count as untrusted."""
    untrusted: list[str] = Field(default_factory=list)
    """Tools whose results outsiders may have written; takes precedence over `trusted`."""
    private: list[str] = Field(default_factory=list)
    """Tools whose results are confidential."""
    sinks: list[str] | None = None
    """Tools that may not be called after the model has read untrusted content, because they change or send something. Left out: all
    tools.
    """
    accepts_untrusted: list[str] = Field(default_factory=list)
    """Tools that may be called even after the model has read untrusted content; takes precedence over `sinks`."""
    public_sinks: list[str] = Field(default_factory=list)
    """Tools that may not be called after the model has read confidential results, because they may send such results to outsiders."""
    on_violation: Literal["ask", "refuse"] = "ask"
    """What happens to a call that these rules forbid. `ask`: ask the user to approve it, if possible; `refuse`: reject it."""


MiddlewareEntry = str | dict[str, dict[str, JsonValue]]
"""Reference to middleware (a Python object): `module:name`, or `{module:name: {argument: value}}` with arguments for its constructor."""


def reference_of(entry: MiddlewareEntry) -> str:
    """Return the reference `module:name` of a middleware entry, without constructor arguments."""
    return entry if isinstance(entry, str) else next(iter(entry))


def _checked_middleware(entries: list[MiddlewareEntry]) -> list[MiddlewareEntry]:
    """Check the middleware entries and return them unchanged. Raises `ValueError` if an entry does not name exactly one Python object."""
    for entry in entries:
        if not isinstance(entry, str) and len(entry) != 1:
            raise ValueError("an entry with arguments names one object: `{package.module:name: {argument: value}}`")
        checked_reference(reference_of(entry))
    return entries


def checked_reference(reference: str) -> str:
    """Return a reference to a Python object unchanged. Raises `ValueError` if it does not have the form `package.module:name`."""
    module, _, name = reference.partition(":")
    if not module or not name:
        raise ValueError(f"{reference!r} names no object; write `package.module:name`")
    return reference


MiddlewareEntries = Annotated[list[MiddlewareEntry], AfterValidator(_checked_middleware)]
"""List of references to middleware, each of which names exactly one Python object."""


class AgentSettings(Model):
    """Settings of every agent that runs in this gateway."""

    middleware: MiddlewareEntries = Field(default_factory=list[MiddlewareEntry])
    """Middleware and lifecycle hooks, as `module:name` or `{module:name: arguments}`. They run around the middleware of an agent's file."""
    files: FileAccess | None = None
    """A folder whose files every agent can use, unless the agent's file has the key `files`."""
    security: FlowSecurity | None = None
    """Limits on tool calls after the model has read untrusted content, for every agent whose file has no key `security`. Experimental."""
