"""Which folders a model may have: none through which it could change what the gateway runs, or read what the gateway keeps secret.

Plain data in, plain data out: `storage.places` finds where paths lead, `app.roots` names what is protected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.policy.decision import PASS, Pass, Reject

RULE = "files.root"
"""Rule id of a refused folder."""

Access = Literal["read", "write", "delete"]


@dataclass(frozen=True, slots=True)
class Protected:
    """One file or folder that a model's folder may not touch."""

    what: str
    """For people: `the configuration file`."""
    path: str
    place: tuple[str, ...]
    """Identities of the folders above it and of itself, outermost first."""
    refuses: Literal["writing", "reading"] = "writing"
    """`reading`: a folder that may only be read is refused too."""
    reach: Literal["both", "around"] = "both"
    """`both`: a folder that contains it and a folder inside it; `around`: only a folder that contains it."""
    is_remarked: bool = False
    """Whether an operator is told of a folder that is read and contains it."""


def judge_root(root: str, place: Sequence[str], access: Access, protected: Sequence[Protected]) -> Pass | Reject:
    """Decide whether a model may have the folder `root`, which is at `place`."""
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
    """Return what an operator should know of a folder that a model may read; `None` if there is nothing."""
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
