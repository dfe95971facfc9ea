"""The `instructions` clients receive: what is behind this endpoint and how to start, in a few lines.

Made from the sources' state whenever lists change; a client reads them once when it connects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.policy.scopes import knows_source
from gateway.tools.base import SourceStatus

MAX_NOTE_CHARS = 1_500
"""Of one server's own instructions; they are its author's words and share the client's context."""

_INTRODUCTION = "This endpoint is a gateway: its tools come from several sources, and a tool's name starts with its source."


def build_instructions(
    configured: str | None, sources: Sequence[SourceStatus], notes: Mapping[str, str], skills: int, scopes: Sequence[str] | None = None
) -> str:
    """`notes` are the instructions of remote servers by source name; `skills` is how many skills are served. Of what a caller with
    these `scopes` may not use, nothing is said.
    """
    lines: list[str] = [configured] if configured else []
    lines.append(_INTRODUCTION)
    for source in sources:
        if source.state == "disabled" or not knows_source(scopes, source.name):
            continue
        state = "" if source.state in ("ready", "idle") else f" ({source.state})"
        if source.kind != "skill":
            lines.append(f"- {source.name}: {source.tools} {source.kind} tool{'' if source.tools == 1 else 's'}{state}")
    if skills and knows_source(scopes, "skill"):
        many = "" if skills == 1 else "s"
        lines.append(f"{skills} skill{many} for recurring work: use search_skills, then load_skill, before you start such work.")
    for name, note in ((name, note) for name, note in notes.items() if knows_source(scopes, name)):
        text = note if len(note) <= MAX_NOTE_CHARS else note[:MAX_NOTE_CHARS] + " …"
        lines.append(f"\nFrom server {name!r}, in its own words:\n{text}")
    return "\n".join(lines)
