"""Finds folders with skills of other agent hosts, such as Claude Code, and of installed Python packages.

`load` adds these folders to those in `expose.skills`, whose skills the gateway serves.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from gateway.config.skill_settings import Vendor
from gateway.errors import ConfigError

_FOLDERS: dict[Vendor, tuple[str, str]] = {
    "agents": (".agents/skills", ".agents/skills"),
    "claude": (".claude/skills", ".claude/skills"),
    "codex": (".codex/skills", ".codex/skills"),
    "copilot": (".github/skills", ".copilot/skills"),
    "cursor": (".cursor/skills", ".cursor/skills"),
    "gemini": (".gemini/skills", ".gemini/skills"),
}
"""Agent host → its folder with skills, relative to the project, and relative to the user's home folder."""


def vendor_folders(vendors: Sequence[Vendor], base_dir: Path, home: Path) -> list[Path]:
    """Return the existing folders with skills of the agent hosts `vendors`.

    The folders of the project, which is in `base_dir`, come before the folders of the user.
    """
    project = [base_dir / _FOLDERS[vendor][0] for vendor in vendors]
    places = [*project, *(home / _FOLDERS[vendor][1] for vendor in vendors)]
    return [place for place in dict.fromkeys(places) if place.is_dir()]


def package_folders(packages: Sequence[str]) -> list[Path]:
    """Return the folder `skills` in each of the installed Python packages. No package is imported, not even parent packages.

    Raises:
        ConfigError: A package is not installed or has no such folder.
    """
    found: list[Path] = []
    for name in packages:
        top, *inner = name.split(".")
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            spec = None
        places = [Path(place, *inner) for place in (spec.submodule_search_locations or ())] if spec is not None else []
        existing = [place / "skills" for place in places if (place / "skills").is_dir()]
        if not existing:
            is_there = spec is not None and (not inner or any(place.is_dir() for place in places))
            reason = "has no folder `skills`" if is_there else "is not installed"
            raise ConfigError(f"skills.packages: package {name!r} {reason}.", path="skills.packages")
        found += existing
    return found
