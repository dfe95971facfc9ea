"""`SkillBackend`: the interface of providers of skills that are not in folders: Python objects, and skills of remote MCP servers.

The skill library (`library.SkillLibrary`) adds these skills to its index of skills from folders, and fetches their bytes from the backend.
`code.CodeSkills` and the catalog's `RemoteSkills` implement the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.json_types import JsonValue
from gateway.skills.model import Skill, SkillFile
from gateway.tools.context import CallContext


class SkillBackend(Protocol):
    """Interface of a provider of skills that are not in folders. `Skill.key` of a provided skill begins with the `id` of its backend."""

    @property
    def id(self) -> str:
        """Id of the backend, with which the `Skill.key` of its skills begins.

        It must not be the path of a folder with skills, because the keys of skills in folders begin with that path.
        """
        ...

    @property
    def skills(self) -> Sequence[Skill]:
        """The skills that the last successful `refresh` found."""
        ...

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Register a callback, which the backend calls synchronously after each change of `skills`."""
        ...

    async def refresh(self) -> None:
        """Check whether the backend's skills have changed, and update `skills`. If the check fails, `skills` stays unchanged.

        The skill library calls this as often as it checks skill folders.
        """
        ...

    async def ready(self) -> None:
        """Wait, with a deadline, until the backend has listed its skills for the first time."""
        ...

    async def renew(self, skill: Skill, ctx: CallContext) -> Skill:
        """Return the current version of a skill from the backend. The text of its `SKILL.md` may be missing in the result.

        Raises:
            NotFound: The backend no longer has the skill.
            GatewayError: The backend cannot be reached.
        """
        ...

    async def fetch(self, skill: Skill, path: str, ctx: CallContext) -> tuple[SkillFile, bytes]:
        """Fetch a file of a skill. Return the file's description (`SkillFile`: path, type, size, digest) and its current bytes.

        The caller compares the bytes with the digest.

        Raises:
            NotFound: The skill has no such file.
            GatewayError: The backend cannot be reached, or its code fails.
        """
        ...

    def locate(self, skill: Skill, path: str) -> tuple[str, str]:
        """Return the id of the source (a server or the gateway itself) that publishes a skill's file, and the file's URI at that source.

        The scopes of an API key, which limit what the key may read, are checked against both values.

        Raises:
            NotFound: The skill has no such file.
        """
        ...

    async def run(self, skill: Skill, function: str, args: JsonValue, ctx: CallContext) -> str:
        """Call one of the skill's `functions` (scripts that are Python functions) and return its result as text.

        Raises:
            SkillError: The arguments do not fit the function.
            ToolFailed: The function fails.
        """
        ...
