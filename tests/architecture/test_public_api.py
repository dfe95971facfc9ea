"""The names that `gateway` offers, with their parameters and members, are what was released.

After an intended change: `python -m tests.architecture.test_public_api` writes the snapshot again; the change then shows in the diff.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import gateway

SNAPSHOT = Path(__file__).with_name("public_api.json")


def describe(value: Any) -> Any:
    """What callers rely on: parameters of functions, parameters and public members of classes."""
    if isinstance(value, str):
        return "text"
    if not inspect.isclass(value):
        return parameters(value)
    own = {name for base in value.__mro__[:-1] if base.__module__.startswith("gateway") for name in [*vars(base), *annotated(base)]}
    members = sorted(name for name in own if not name.startswith("_"))
    return {"parameters": parameters(value), "members": members}


def annotated(kind: type) -> list[str]:
    return list(vars(kind).get("__annotations__", {}))


def parameters(value: Any) -> list[str]:
    """Names in order: `name?` has a default, `*` starts keyword-only ones."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return []
    shown: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        shown.append(f"{star}{parameter.name}{'' if parameter.default is parameter.empty else '?'}")
    return shown


def current() -> dict[str, Any]:
    return {name: describe(getattr(gateway, name)) for name in sorted(gateway.__all__)}


def test_the_public_api_is_the_released_one() -> None:
    assert current() == json.loads(SNAPSHOT.read_text(encoding="utf-8")), "see this module's docstring"


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(current(), indent=1) + "\n", encoding="utf-8")
