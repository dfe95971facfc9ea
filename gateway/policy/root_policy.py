"""Decides which folders a model may use: none in which it could change what the gateway runs, or read the gateway's secrets.

Plain data in, plain data out: `storage.path_identity` identifies folders, and `gate.root_rules` lists the protected ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.policy.decision import PASS, Pass, Reject

RULE = "files.root"
"""Rule id of a rejected folder."""

Access = Literal["read", "write", "delete"]


@dataclass(frozen=True, slots=True)
class Protected:
    """A file or folder of the gateway to which a model must not get access through a folder that it may use."""

    what: str
    """Name for people, such as `the configuration file`."""
    path: str
    place: tuple[str, ...]
    """Identities of the folders above this file or folder, outermost first, and its own identity at the end."""
    refuses: Literal["writing", "reading"] = "writing"
    """`writing`: rejects folders that a model may write; `reading`: also folders that it may only read."""
    reach: Literal["both", "around"] = "both"
    """`both`: rejects folders that contain this one and folders inside it; `around`: only folders that contain it."""
    is_remarked: bool = False
    """Whether to warn the operator if a model may read a folder that contains this one, or lies inside it."""


def judge_root(root: str, place: Sequence[str], access: Access, protected: Sequence[Protected]) -> Pass | Reject:
    """Decide whether a model may use the folder `root`. `place` are the identities of the folders above it and its own, outermost first."""
    for item in protected:
        if access == "read" and item.refuses != "reading":
            continue
        relation = _relation(place, item)
        if relation is not None:
            harm = "could read the gateway's secrets" if access == "read" else "could change what the gateway runs"
            fix = "Name a folder outside it" if relation == "is inside" else "Name a folder of its own"
            also = ", or set `access: read`" if item.refuses == "writing" else ""
            return Reject(RULE, f"{root!r} {relation} {item.what} {item.path!r}: a model with these files {harm}. {fix}{also}.")
    return PASS


def remark_root(root: str, place: Sequence[str], protected: Sequence[Protected]) -> str | None:
    """Return a warning for the operator if a model may read the folder `root`, which contains a protected place; else `None`."""
    for item in protected:
        if item.is_remarked and (relation := _relation(place, item)) is not None:
            return f"{root!r} {relation} {item.what} {item.path!r}: the model can read it, and what it reads goes to the model's provider."
    return None


def _relation(place: Sequence[str], item: Protected) -> Literal["is", "contains", "is inside"] | None:
    if place[-1] == item.place[-1]:
        return "is"
    if place[-1] in item.place:
        return "contains"
    return "is inside" if item.reach == "both" and item.place[-1] in place else None
