"""`SkillBackend`: base class of providers of skills that are not in folders: Python objects, and skills of remote MCP servers.

The skill library (`library.SkillLibrary`) adds these skills to its index of skills from folders, and fetches their bytes from the backend.
`code.CodeSkills` and the catalog's `RemoteSkills` are the backends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from gateway.errors import NotFound
from gateway.json_types import JsonValue
from gateway.skills.index import SOURCE_ID, own_uri
from gateway.skills.model import Skill, SkillFile
from gateway.tools.context import CallContext


class SkillBackend(ABC):
    """A provider of skills that are not in folders."""

    id: ClassVar[str]
    """Id of the backend: the first part of the `Skill.key` of each of its skills.

    It must not be the path of a folder with skills, because the keys of skills in folders begin with that path.
    """

    def __init__(self) -> None:
        self._on_change: Callable[[], None] = lambda: None

    @property
    @abstractmethod
    def skills(self) -> Sequence[Skill]:
        """The skills that the last successful check of the backend found."""

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Register the callback that the backend calls synchronously after each change of `skills`. It replaces an earlier callback."""
        self._on_change = on_change

    async def refresh(self) -> None:  # noqa: B027
        """Check whether the backend's skills have changed, and update `skills`. If the check fails, `skills` stays unchanged.

        The skill library calls this as often as it checks skill folders. The default implementation does nothing, which suits a backend
        that learns of changes in another way.
        """

    async def ready(self) -> None:  # noqa: B027
        """Wait, with a deadline, until the backend has listed its skills for the first time. By default, return at once."""

    @abstractmethod
    async def renew(self, skill: Skill, ctx: CallContext) -> Skill:
        """Return the current version of a skill from the backend. The text of its `SKILL.md` may be missing in the result.

        Raises:
            NotFound: The backend no longer has the skill.
            GatewayError: The backend cannot be reached.
        """

    @abstractmethod
    async def fetch(self, skill: Skill, path: str, ctx: CallContext) -> tuple[SkillFile, bytes]:
        """Fetch a file of a skill. Return the file's description (`SkillFile`: path, type, size, digest) and its current bytes.

        The caller compares the bytes with the digest.

        Raises:
            NotFound: The skill has no such file.
            GatewayError: The backend cannot be reached, or its code fails.
        """

    def locate(self, skill: Skill, path: str) -> tuple[str, str]:
        """Return the id of the source that publishes a skill's file, and the file's URI there. By default, the source is the gateway.

        The scopes of an API key, which limit what the key may read, are checked against both values.

        Raises:
            NotFound: The skill has no such file.
        """
        return SOURCE_ID, own_uri(skill, path)

    async def run(self, skill: Skill, function: str, args: JsonValue, ctx: CallContext) -> str:
        """Call one of the skill's `functions` (scripts that are Python functions) and return its result as text.

        Raises:
            NotFound: The skill has no such function. The default implementation always raises this.
            SkillError: The arguments do not fit the function.
            ToolFailed: The function fails.
        """
        raise NotFound("script", function)
