"""`SkillHome`: where skills are that are in no folder: in code, or on a server behind this gateway.

The library puts them into its one index beside those of folders, and asks their home for bytes. `code` is one home, the
catalog's `RemoteSkills` the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.json_types import JsonValue
from gateway.skills.models import Skill, SkillFile
from gateway.tools.context import CallContext


class SkillHome(Protocol):
    """Skills whose `key` begins with `id`."""

    @property
    def id(self) -> str:
        """Unlike every folder's path."""
        ...

    @property
    def skills(self) -> Sequence[Skill]:
        """As last seen; never waits."""
        ...

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Register the library; it is told after each change, synchronously."""
        ...

    async def refresh(self) -> None:
        """Look again; called as often as folders are looked at. What fails keeps what was there."""
        ...

    async def ready(self) -> None:
        """Wait, bounded, for the first look where it is still under way."""
        ...

    async def renew(self, skill: Skill, ctx: CallContext) -> Skill:
        """The skill as it is now, with its body. Raises `NotFound`, or what reaching it fails with."""
        ...

    async def read(self, skill: Skill, path: str, ctx: CallContext) -> tuple[Skill, SkillFile, bytes]:
        """The bytes of one of its files; they have the digest that is told. Raises `NotFound`, or what reaching it fails with."""
        ...

    def place_of(self, skill: Skill, path: str) -> tuple[str, str]:
        """Id of the source that publishes a file of a skill, and the file's URI there: what scopes are judged by. Raises `NotFound`."""
        ...

    async def run(self, skill: Skill, function: str, args: JsonValue, ctx: CallContext) -> str:
        """What one of its `functions` returns, as text. Raises `SkillError` for wrong arguments and `ToolFailed` for a failure."""
        ...
