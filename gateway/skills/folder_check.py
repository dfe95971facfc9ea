"""`check_skills`: judges the skill folders that a person names, for `moongate skills check`.

The index that serves skills also judges them here. A path may be a folder of skills, the folder of one skill or its `SKILL.md`. Blocking;
prints nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from gateway.diagnostics import Diagnostic
from gateway.skills.index import build_index
from gateway.skills.model import MANIFEST, SkillReport


def check_skills(paths: Sequence[str], *, strict: bool = False) -> list[SkillReport]:
    """Return one report per skill below `paths`, sorted by path, and one per path without a skill.

    Reports spell paths as they were given. With `strict`, warnings reject a skill.
    """
    roots = {_folder_of(path): path for path in reversed(paths)}
    index = build_index(tuple(dict.fromkeys(_folder_of(path) for path in paths)), strict=strict)
    reports = [*index.trouble, *index.reports]
    if strict:
        reports = [r if r.verdict != "accepted_with_warning" else replace(r, verdict="rejected", listed=False) for r in reports]
    seen = [r.path for r in reports]
    for folder in roots:
        real = os.path.realpath(folder)
        if not any(path == real or path.startswith(real.rstrip(os.sep) + os.sep) for path in seen):
            text = f"The folder has no {MANIFEST}, and neither has a folder below it."
            reports.append(SkillReport(real, "", "rejected", False, (Diagnostic("no-skill", "error", text),)))
    spelled = {os.path.realpath(folder): folder for folder in roots}
    return sorted((replace(r, path=_as_given(r.path, spelled)) for r in reports), key=lambda r: (r.path, r.name))


def _folder_of(path: str) -> str:
    """Return the folder that a path given by the user means: the path itself, or the folder that contains a given `SKILL.md`."""
    is_manifest = os.path.basename(path).casefold() == MANIFEST.casefold() and not os.path.isdir(path)
    return (os.path.dirname(path) or os.curdir) if is_manifest else path


def _as_given(path: str, spelled: dict[str, str]) -> str:
    """Return the real `path` as the user would write it, below the innermost folder that the user named (`spelled`: real → written)."""
    for real in sorted(spelled, key=len, reverse=True):
        if path == real:
            return spelled[real]
        if path.startswith(real.rstrip(os.sep) + os.sep):
            return os.path.join(spelled[real], os.path.relpath(path, real))
    return path
