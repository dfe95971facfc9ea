"""`skill_instructions`: what an agent is told about its skills, before it loads one.

The first step of progressive disclosure: names and descriptions only. Agents and skills are sibling rooms, so `app`
hands the bound function (`SkillSource.instructions`) to the agents; they load skills with the tools of `tools`.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.config.templates import fill_template
from gateway.errors import SkillError, ToolFailed
from gateway.skills.index import SkillIndex
from gateway.skills.models import Skill
from gateway.skills.render import escape, one_line
from gateway.skills.tools import find_skill

_TEMPLATE = """\
You have skills: tested instructions for particular kinds of work. When a task matches one, call `load_skill` with \
its name before you act, follow what it says, and read the files it refers to with `read_skill_resource`. Load a \
skill once.
<available_skills>
{skills}
</available_skills>"""


def skill_instructions(index: SkillIndex, names: Sequence[str], template: str | None = None) -> str:
    """The part of an agent's instructions that advertises `names`, sorted; `""` for no names.

    Names and descriptions are XML-escaped. `template` is a usable one (`config.templates`).

    Raises:
        SkillError: A name means no skill, or several (code `unknown-skill`).
    """
    if not names:
        return ""
    lines: list[str] = []
    chosen = {index.handle(skill): skill for skill in find_named(index, names)}
    for handle, skill in sorted(chosen.items()):
        description = escape(one_line(skill.document.description))
        lines.append(f"<skill><name>{escape(handle)}</name><description>{description}</description></skill>")
    return fill_template(template or _TEMPLATE, "\n".join(lines))


def find_named(index: SkillIndex, names: Sequence[str]) -> list[Skill]:
    """The skills that an agent file names.

    Raises:
        SkillError: A name means no skill, or several (code `unknown-skill`).
    """
    try:
        return [find_skill(index, name) for name in names]
    except ToolFailed as error:
        raise SkillError(str(error), code="unknown-skill") from None
