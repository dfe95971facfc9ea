"""`SkillBackend`: provides skills that are not in folders: skills in code, or on servers behind this gateway.

The library puts these skills into its index beside those of folders and fetches their bytes from the backend. `code.CodeSkills` and
the catalog's `RemoteSkills` implement the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.json_types import JsonValue
from gateway.skills.model import Skill, SkillFile
from gateway.tools.context import CallContext


class SkillBackend(Protocol):
    """Provides the skills whose `Skill.key` has the `id` of this backend as its first part."""

    @property
    def id(self) -> str:
        """Id of the backend, which must differ from the paths of all skill folders."""
        ...

    @property
    def skills(self) -> Sequence[Skill]:
        """The skills that the last refresh found."""
        ...

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Register the callback that is called synchronously after each change of `skills`."""
        ...

    async def refresh(self) -> None:
        """Check for changes; the library calls it as often as it checks folders. After a failure `skills` stays unchanged."""
        ...

    async def ready(self) -> None:
        """Wait, with a deadline, until the backend has listed its skills for the first time."""
        ...

    async def renew(self, skill: Skill, ctx: CallContext) -> Skill:
        """Return the skill as the backend lists it now; its body may be missing.

        Raises:
            NotFound: The backend no longer has the skill.
            GatewayError: The backend cannot be reached.
        """
        ...

    async def fetch(self, skill: Skill, path: str, ctx: CallContext) -> tuple[SkillFile, bytes]:
        """Return the list entry of a skill's file and the file's current bytes. The caller compares the bytes with the digest in the entry.

        Raises:
            NotFound: The skill has no such file.
            GatewayError: The backend cannot be reached, or its code fails.
        """
        ...

    def locate(self, skill: Skill, path: str) -> tuple[str, str]:
        """Return the id of the source that publishes a file, and the source's URI of it. Scopes are judged by both. Raises `NotFound`."""
        ...

    async def run(self, skill: Skill, function: str, args: JsonValue, ctx: CallContext) -> str:
        """Call one of the skill's `functions` and return its result as text.

        Raises:
            SkillError: The arguments do not fit.
            ToolFailed: The function fails.
        """
        ...
