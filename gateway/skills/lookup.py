"""Finds the skill that a call, a command or an agent file names, and decides whether the caller may read the skill.

The skill tools, the command `moongate skills grant` and `SkillSource` use this module.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

from gateway.errors import PolicyDenied, SkillError, ToolFailed
from gateway.json_types import JsonObject
from gateway.policy.caller_rights import is_hidden
from gateway.policy.decision import PASS, Reject, Verdict
from gateway.skills.index import SCHEME, SkillIndex
from gateway.skills.library import SkillLibrary
from gateway.skills.model import MANIFEST, Key, Skill
from gateway.skills.render import one_line
from gateway.tools.call_facts import SKILL_ARGUMENT
from gateway.tools.context import CallContext


class SkillRights:
    """Decides which skills a tool call may read: those that the rights of the caller include; without rights, all.

    A call that an agent or workflow makes may also read the skills that the file of this agent or workflow lists by name.
    """

    def __init__(self, library: SkillLibrary, index: SkillIndex, ctx: CallContext) -> None:
        self._library = library
        self._rights = ctx.facts.principal.rights
        self._named = frozenset[Key]() if self._rights is None else skills_named(index, ctx.facts.skills_in_files)

    def judge(self, skill: Skill, path: str) -> Verdict:
        """Decide whether the call may read the file `path` of a skill: `PASS`, or a `Reject` with the reason."""
        return PASS if skill.key in self._named else self._library.judge(skill, path, self._rights)

    def readable(self, skills: Sequence[Skill]) -> Sequence[Skill]:
        """Return those of `skills` whose `SKILL.md` the call may read."""
        return skills if self._rights is None else [skill for skill in skills if self.judge(skill, MANIFEST) is PASS]


def named_skill(library: SkillLibrary, index: SkillIndex, arguments: JsonObject, ctx: CallContext) -> Skill:
    """Return the skill that a tool call names in its argument `skill_name`.

    Raises:
        ToolFailed: The name fits no skill or several; the text names the candidates.
        PolicyDenied: The caller may not read the skill.
    """
    name = str(arguments.get(SKILL_ARGUMENT) or "")
    rights = SkillRights(library, index, ctx.as_caller())
    if (found := index.named(name)) and not rights.readable(found) and not is_hidden(rights.judge(found[0], MANIFEST)):
        check_file(library, found[0], MANIFEST, ctx)
    return find_skill(index, name, rights.readable)


def check_file(library: SkillLibrary, skill: Skill, path: str, ctx: CallContext) -> None:
    """Raise an exception unless the caller of a tool may read the file `path` of a skill.

    Raises:
        PolicyDenied: The scopes of the caller do not allow the file.
        ToolFailed: The file does not exist for the caller, by its roles or Cedar policies.
    """
    verdict = SkillRights(library, library.index, ctx.as_caller()).judge(skill, path)
    if is_hidden(verdict):
        raise ToolFailed(f"Skill {skill.name!r} has no file {one_line(path, 200)!r}. List its files with resource_name \".\".")
    if isinstance(verdict, Reject):
        raise PolicyDenied(verdict.reason, rule=verdict.rule, subject=skill.id)


def skills_named(index: SkillIndex, names: Iterable[str]) -> frozenset[Key]:
    """Return the keys of the skills that the file of an agent or workflow lists by name. A name that fits several skills is left out."""
    found = [index.named(name) for name in names]
    return frozenset(skills[0].key for skills in found if len(skills) == 1)


def find_skill(
    index: SkillIndex, name: str, among: Callable[[Sequence[Skill]], Sequence[Skill]] = lambda skills: skills
) -> Skill:
    """Return the one skill that `name` (a name, id or URI) refers to, among the skills that the filter `among` returns.

    Raises:
        ToolFailed: The name fits no skill or several; the text names the candidates.
    """
    found = among(index.named(name))
    if len(found) == 1:
        return found[0]
    if found:
        candidates = ", ".join(f"{SCHEME}{skill.id} (from {skill.origin})" for skill in found)
        raise ToolFailed(f"{len(found)} skills are called {name!r}; pass one of these as skill_name: {candidates}.")
    if not name.strip():
        raise ToolFailed("skill_name is empty; pass the name of a skill. search_skills finds it.")
    hint = suggestion(name, [index.handle(s) for s in among(index.for_models)], "Find its name with search_skills.")
    raise ToolFailed(f"Unknown skill {one_line(name, 100)!r}. {hint}")


def skills_of_file(index: SkillIndex, names: Sequence[str]) -> list[Skill]:
    """Return the skills that an agent file lists by name, in the order of `names`.

    Raises:
        SkillError: A name fits no skill or several (code `unknown-skill`).
    """
    try:
        return [find_skill(index, name) for name in names]
    except ToolFailed as error:
        raise SkillError(str(error), code="unknown-skill") from None


def suggestion(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return the question "Did you mean …?" with up to three names in `known` that are similar to `name`; else the text `otherwise`.

    Error messages end with the returned text.
    """
    folded = {k.casefold(): k for k in known}
    wanted = name.strip().casefold()[:200]
    matches = difflib.get_close_matches(wanted, folded, n=3, cutoff=0.6)
    if wanted:
        matches += [k for k in folded if k not in matches and (wanted in k or k.rsplit("/", 1)[-1] == wanted.rsplit("/", 1)[-1])]
    near = " or ".join(repr(folded[m]) for m in matches[:3])
    return f"Did you mean {near}?" if near else otherwise
