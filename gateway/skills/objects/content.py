"""The text of a loaded skill: instructions in code as XML, and what the skill offers to read and to run.

The shapes are agent-framework's since core 1.13: models and prompts written for it read them. Names, descriptions and
schemas are escaped; instructions are the author's own words and stay as they are.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.skills.objects.frontmatter import SkillFrontmatter

if TYPE_CHECKING:
    from gateway.skills.objects.skill import SkillResource, SkillScript


def skill_text(
    frontmatter: SkillFrontmatter, instructions: str, resources: Sequence[SkillResource], scripts: Sequence[SkillScript]
) -> str:
    """The whole text of a skill that is defined in code."""
    return (
        f"<name>{html.escape(frontmatter.name)}</name>\n<description>{html.escape(frontmatter.description)}</description>\n\n"
        f"<instructions>\n{instructions}\n</instructions>{member_blocks(resources, scripts)}"
    )


def member_blocks(resources: Sequence[SkillResource], scripts: Sequence[SkillScript]) -> str:
    """The end of every skill's text; both blocks are there even when empty, so that a model need not guess."""
    return _block("available_resources", [_opening("resource", r) + "/>" for r in resources]) + _block(
        "available_scripts", [_script(script) for script in scripts]
    )


def _block(tag: str, entries: Sequence[str]) -> str:
    if not entries:
        return f"\n\n<{tag} />"
    lines = "\n".join(f"  {entry}" for entry in entries)
    return f"\n\n<{tag}>\n{lines}\n</{tag}>"


def _script(script: SkillScript) -> str:
    opening, schema = _opening("script", script), script.parameters_schema
    if not schema:
        return f"{opening}/>"
    text = html.escape(json.dumps(schema), quote=False)
    return f"{opening}>\n    <parameters_schema>{text}</parameters_schema>\n  </script>"


def _opening(tag: str, member: SkillResource | SkillScript) -> str:
    described = f' description="{html.escape(member.description)}"' if member.description else ""
    return f'<{tag} name="{html.escape(member.name)}"{described}'
