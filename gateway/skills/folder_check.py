"""`check_skills`: checks the skill folders that a user names, for the command `moongate skills check`.

The checks are those of the gateway: `build_index` makes them. A path may be a folder of skills, the folder of one skill, or its `SKILL.md`.
Blocking; prints nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from gateway.diagnostics import Diagnostic
from gateway.skills.folders import segments_below
from gateway.skills.index import build_index
from gateway.skills.model import MANIFEST, SkillReport


def check_skills(paths: Sequence[str], *, strict: bool = False) -> list[SkillReport]:
    """Return one report per skill below `paths`, and one per path that has no skill, sorted by path.

    Paths in reports are written as the user gave them. With `strict`, warnings reject a skill.
    """
    roots = {_folder_of(path): path for path in reversed(paths)}
    index = build_index(tuple(dict.fromkeys(_folder_of(path) for path in paths)), strict=strict)
    reports = [*index.trouble, *index.reports]
    if strict:
        reports = [r if r.verdict != "accepted_with_warning" else replace(r, verdict="rejected", listed=False) for r in reports]
    seen = [r.path for r in reports]
    for folder in roots:
        real = os.path.realpath(folder)
        if all(segments_below(real, path) is None for path in seen):
            text = f"The folder has no {MANIFEST}, and neither has a folder below it."
            reports.append(SkillReport(real, "", "rejected", False, (Diagnostic("no-skill", "error", text),)))
    spelled = {os.path.realpath(folder): folder for folder in roots}
    return sorted((replace(r, path=_as_given(r.path, spelled)) for r in reports), key=lambda r: (r.path, r.name))


def _folder_of(path: str) -> str:
    """Return the folder to check for a path that the user gave: the path itself, or the containing folder if the path is a `SKILL.md`."""
    is_manifest = os.path.basename(path).casefold() == MANIFEST.casefold() and not os.path.isdir(path)
    return (os.path.dirname(path) or os.curdir) if is_manifest else path


def _as_given(path: str, spelled: dict[str, str]) -> str:
    """Return the real `path` with its beginning replaced by the folder as the user wrote it. If several folders fit, the innermost is used.

    `spelled` maps real paths of folders to the paths that the user wrote.
    """
    for real in sorted(spelled, key=len, reverse=True):
        below = segments_below(real, path)
        if below is not None:
            return os.path.join(spelled[real], *below)
    return path
