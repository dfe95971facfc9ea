"""Skill folders on disk and calls of the skill tools, for the tests of skills."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gateway.errors import GatewayError
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.skills.source import SkillSource
from gateway.tools.base import Complete
from gateway.tools.context import CallContext

CTX = CallContext()


def write_skill(
    folder: Path,
    *,
    name: str | None = None,
    description: str = "Does a thing. Use it for things.",
    extra: str = "",
    body: str = "# Do it\n\nStep by step.\n",
    files: Mapping[str, str | bytes] | None = None,
) -> Path:
    """Write a skill to `folder` and return the folder. `name` defaults to the folder's name."""
    folder.mkdir(parents=True, exist_ok=True)
    header = f"name: {folder.name if name is None else name}\ndescription: {description}\n{extra}"
    (folder / "SKILL.md").write_bytes(f"---\n{header}---\n{body}".encode())
    for path, content in (files or {}).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


async def call(source: SkillSource, tool: str, **arguments: JsonValue) -> Complete:
    """Call a skill tool by name; convert an error to an error result as the gate does."""
    for candidate in await source.tools():
        if candidate.definition.name == tool:
            try:
                outcome = await candidate.call(dict(arguments), CTX)
            except GatewayError as error:
                return Complete.text(str(error), is_error=True)
            assert isinstance(outcome, Complete)
            return outcome
    raise AssertionError(f"no tool {tool!r}")


async def load(source: SkillSource, name: str) -> JsonObject:
    """Return the structured content of `load_skill`, which must succeed."""
    done = await call(source, "load_skill", skill_name=name)
    assert not done.is_error, done.as_text()
    return done.structured


async def read_content(source: SkillSource, uri: str) -> JsonObject:
    """Return the one content of `resources/read`."""
    outcome = await source.read(uri, CTX)
    (content,) = outcome.result["contents"]
    return content


def codes(source: SkillSource) -> dict[str, set[str]]:
    """Return the codes of all warnings and errors by folder name."""
    return {
        Path(report.path).name: {d.code for d in report.diagnostics if d.level != "info"} for report in source.problems
    }


def entries_of(source: SkillSource) -> list[JsonMapping]:
    """`{uri, frontmatter, resources}` of every listed skill (SEP-2640), sorted by URI."""
    return [skill.entry for skill in source.index.listed]
