"""The text of a loaded skill: instructions in code as XML, and what the skill offers to read and to run.

The shapes are agent-framework's since core 1.13: models and prompts written for it read them. Names, descriptions and
schemas are escaped; instructions are the author's own words and stay as they are.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gateway.skills.objects.frontmatter import SkillFrontmatter


class Offered(Protocol):
    """Something that a skill offers to read."""

    @property
    def name(self) -> str:
        """By which it is asked for."""
        ...

    @property
    def description(self) -> str | None:
        """In a few words."""
        ...


class OfferedScript(Offered, Protocol):
    """Something that a skill offers to run."""

    @property
    def parameters_schema(self) -> Mapping[str, Any] | None:
        """Its arguments as JSON Schema; `None` for none."""
        ...


def skill_text(
    frontmatter: SkillFrontmatter, instructions: str, resources: Sequence[Offered], scripts: Sequence[OfferedScript]
) -> str:
    """The whole text of a skill that is defined in code."""
    return code_text(frontmatter.name, frontmatter.description, instructions) + member_blocks(resources, scripts)


def code_text(name: str, description: str, instructions: str) -> str:
    """The text of a skill that is defined in code, without what it offers."""
    head = f"<name>{html.escape(name)}</name>\n<description>{html.escape(description)}</description>"
    return f"{head}\n\n<instructions>\n{instructions}\n</instructions>"


def member_blocks(resources: Sequence[Offered], scripts: Sequence[OfferedScript]) -> str:
    """The end of every skill's text. Both blocks are there even when empty, so that a model need not guess."""
    return _block("available_resources", [_opening("resource", r) + "/>" for r in resources]) + _block(
        "available_scripts", [_script(script) for script in scripts]
    )


def _block(tag: str, entries: Sequence[str]) -> str:
    if not entries:
        return f"\n\n<{tag} />"
    lines = "\n".join(f"  {entry}" for entry in entries)
    return f"\n\n<{tag}>\n{lines}\n</{tag}>"


def _script(script: OfferedScript) -> str:
    opening, schema = _opening("script", script), script.parameters_schema
    if not schema:
        return f"{opening}/>"
    text = html.escape(json.dumps(schema), quote=False)
    return f"{opening}>\n    <parameters_schema>{text}</parameters_schema>\n  </script>"


def _opening(tag: str, member: Offered) -> str:
    described = f' description="{html.escape(member.description)}"' if member.description else ""
    return f'<{tag} name="{html.escape(member.name)}"{described}'
