"""The names that `gateway` offers, with their parameters and members, are what was released.

`gateway/__init__.pyi` is the list of names. The snapshot `public_api.json` is derived from it and from the signatures. It is kept because
an unintended change of a parameter then fails, and an intended change is reviewed as a diff. After an intended change,
`python -m tests.architecture.test_public_api` writes the snapshot again.
"""

from __future__ import annotations

import inspect
import json
import re
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
    """Names in order: `name?` has a default, `*` starts keyword-only ones. `**options: Unpack[Options]` counts as the keys of `Options`."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return []
    shown: list[str] = []
    for parameter in signature.parameters.values():
        unpacked = re.match(r"Unpack\[(\w+)", str(parameter.annotation))
        if unpacked is not None:
            code = value.__init__ if inspect.isclass(value) else value
            options = inspect.unwrap(code).__globals__[unpacked[1]]
            shown += [] if "*" in shown else ["*"]
            shown += [f"{name}?" for name in sorted(options.__annotations__)]
            continue
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
