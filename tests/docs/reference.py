"""The page of public names, `docs/reference.md`, from the stubs and the docstrings: `python -m tests.docs.reference` writes it."""

from __future__ import annotations

import ast
from importlib import import_module

from gateway.lazy import declared_names
from tests.architecture.sources import ROOT, parsed
from tests.architecture.test_public_api import NAMESPACES

PAGE = ROOT / "docs" / "reference.md"

HEAD = '''\
# Python API

You write a Python program and know what it should do, but not which class does it. Find the name in the tables below, and import it from
`gateway` or the namespace of the table. This program uses three names of the first table and its neighbours:

```python
import asyncio

from gateway import Agent, ScriptedChatClient, tool


@tool
def find_order(number: str) -> str:
    """Find an order by its number, such as A-17."""
    return f"Order {number} was sent on Monday."


async def main() -> None:
    agent = Agent(ScriptedChatClient(["It was sent on Monday."]), "Answer briefly.", tools=find_order)
    print((await agent.run("Where is order A-17?")).text)


if __name__ == "__main__":
    asyncio.run(main())
```

The tables have the first paragraph of each docstring. `help(Agent)` in Python prints the whole docstring and the parameters. More examples
are in [MCP tools](library.md), [Models](models.md) and [Middleware](middleware.md).

`python -m tests.docs.reference` writes this page.
'''


def page() -> str:
    """The whole page: the names of `gateway` by package, then the names that only a namespace has."""
    root = declared_names(ROOT / "gateway" / "__init__.pyi")
    packages: dict[str, dict[str, str]] = {}
    for name in sorted(root, key=str.lower):
        module, original = defined_in(*root[name])
        packages.setdefault(module.split(".")[1], {})[name] = summary(module, original)
    parts = [HEAD, "## gateway\n"]
    parts += [f"### {package}\n\n{table(packages[package])}" for package in sorted(packages)]
    for namespace in NAMESPACES:
        names = declared_names(ROOT / "gateway" / f"{namespace}.pyi")
        own = {name: summary(*names[name]) for name in sorted(names, key=str.lower) if name not in root}
        shared = [name for name in sorted(names, key=str.lower) if name in root]
        parts.append(f"## gateway.{namespace}\n\n{first_paragraph(import_module(f'gateway.{namespace}').__doc__)}\n")
        if own:
            parts.append(table(own))
        if shared:
            parts.append(f"Also in `gateway`: {', '.join(f'`{name}`' for name in shared)}.\n")
    return "\n".join(parts)


def table(rows: dict[str, str]) -> str:
    """A table of names and summaries."""
    return "| name | description |\n|---|---|\n" + "".join(f"| `{name}` | {text} |\n" for name, text in rows.items())


def defined_in(module: str, name: str) -> tuple[str, str]:
    """The module that defines a name which `module` declares; `module` may be a namespace."""
    stub = ROOT / f"{module.replace('.', '/')}.pyi"
    return declared_names(stub)[name] if stub.exists() else (module, name)


def summary(module: str, name: str) -> str:
    """The first paragraph of the docstring of a class, a function or an assignment; without one, the assigned value."""
    found = ""
    body = parsed(ROOT / f"{module.replace('.', '/')}.py").body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            found = first_paragraph(ast.get_docstring(node))  # of the last one, because overloads have none
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = first_paragraph(str(after.value.value))
            else:
                text = f"`{first_paragraph(ast.unparse(node.value))}`"
            found = (isinstance(node.value, ast.Name) and summary(module, node.value.id)) or text
    return found


def first_paragraph(docstring: str | None) -> str:
    """The first paragraph of a docstring, as text of a table's cell."""
    return " ".join((docstring or "").partition("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
