"""The names that `gateway` and its namespaces offer, with their parameters and members, are what was released.

The stubs (`gateway/*.pyi`) are the list of names. The snapshot `public_api.json` is derived from it and from the signatures. It is kept
because an unintended change of a parameter then fails, and an intended change is reviewed as a diff. After an intended change,
`python -m tests.architecture.test_public_api` writes the snapshot again.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import gateway
from tests.architecture.sources import ROOT

STUBS = sorted((ROOT / "gateway").glob("*.pyi"))
NAMESPACES = [stub.stem for stub in STUBS if stub.stem != "__init__"]

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
    """The names of `gateway`, and those that only a namespace has."""
    found = {name: describe(getattr(gateway, name)) for name in sorted(gateway.__all__)}
    for namespace in NAMESPACES:
        module = import_module(f"gateway.{namespace}")
        own = [name for name in module.__all__ if getattr(gateway, name, None) is not getattr(module, name)]
        found |= {f"{namespace}.{name}": describe(getattr(module, name)) for name in sorted(own)}
    return found


def test_the_public_api_is_the_released_one() -> None:
    assert current() == json.loads(SNAPSHOT.read_text(encoding="utf-8")), "see this module's docstring"


def test_public_name_is_declared_in_one_stub() -> None:
    statements = [node for stub in STUBS for node in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    namespaces = {f"gateway.{name}" for name in NAMESPACES}
    declared = Counter((node.module, alias.name) for node in statements if node.module not in namespaces for alias in node.names)
    assert [name for name, count in declared.items() if count > 1] == []


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(current(), indent=1) + "\n", encoding="utf-8")
