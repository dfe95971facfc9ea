"""Decides which folders the gateway may give to a model.

A folder is rejected if the model could change programs of the gateway or read the gateway's secrets in it. The functions are pure:
`storage.path_identity` identifies folders, and `gate.root_rules` lists the protected files and folders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.policy.decision import PASS, Pass, Reject

RULE = "files.root"
"""Rule id in the rejection of a folder that a model may not use."""

Access = Literal["read", "write", "delete"]


@dataclass(frozen=True, slots=True)
class Protected:
    """A file or folder of the gateway that models must not change or, if `refuses` is `reading`, not even read.

    A folder that the configuration offers to a model is rejected if the model could do so in it.
    """

    what: str
    """Name of the file or folder for people, such as `the configuration file`."""
    path: str
    place: tuple[str, ...]
    """Identities of the folders above the protected file or folder, outermost first, and its own identity at the end."""
    refuses: Literal["writing", "reading"] = "writing"
    """Which access is refused. `writing`: a model's folder is rejected if the model may write it; `reading`: also if it may only read."""
    reach: Literal["both", "around"] = "both"
    """Which folders are rejected. `around`: the protected folder itself, and folders that contain the protected file or folder.
    `both`: also folders inside it."""
    is_remarked: bool = False
    """Whether to warn the operator if a model may read a folder that contains the protected file or folder, or is inside it."""


def judge_root(root: str, place: Sequence[str], access: Access, protected: Sequence[Protected]) -> Pass | Reject:
    """Decide whether a model may use the folder `root`: it must not give the model access to the files and folders in `protected`.

    `place` contains the identities of the folders above `root`, outermost first, and of `root` itself.
    """
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
    """Return a warning for the operator if a model that may read the folder `root` can read a protected file or folder; else `None`.

    The files and folders in `protected` are checked if their `is_remarked` is true. `place` contains the identities of the folders above
    `root`, outermost first, and of `root` itself.
    """
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
