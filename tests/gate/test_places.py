"""Every place in the package that may run or read something is listed with the reason why the gate sees it.

`KNOWN` in `places` lists the places, found by the names of methods and functions; `CONTEXT_METHODS` lists the other methods of sources that
take a `CallContext`. A new place fails a test until somebody lists it. Two ways are not seen: a place that gives another object a name of
the list in the same function, and code that does the work of a tool without the tool.
"""

from __future__ import annotations

import ast

import pytest

from tests.architecture.sources import ROOT, name_of, nodes_of, parsed, python_files
from tests.gate.places import DATA, KNOWN, METHODS, NOT_READS, places, places_in

CONTEXT_METHODS = {
    "UpstreamSource.send": "sends the requests of the methods in `METHODS`",
    "UpstreamSource.answer": "answers a request of the server for input",
    "UpstreamSource.answer_input_request": "answers a request of the server for input",
    "UpstreamSource.judge_input_request": "judges a request of the server for input",
    "UpstreamSource.notified": "passes on a notification of the server",
}
"""Other public methods of sources with a `CallContext`, each with the reason why it is not a further way to run or read something."""


def test_every_place_that_may_run_or_read_is_known() -> None:
    assert places() == KNOWN.keys()


def test_every_exception_by_name_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.gate.places.DATA", {})
    monkeypatch.setattr("tests.gate.places.CALLED", frozenset[str]())
    rest = {".".join(place.split(": ", 1)[1].split(".")[-2:]) for place in places() - KNOWN.keys()}
    assert rest == DATA.keys()


CALLS = "gateway/server/calls.py"
RUNS = "gateway/agents/agent_runs.py"
BYPASSES = [
    (CALLS, "outcome = await tool.call(arguments, ctx)", "outcome = await partial(tool.tool.call, arguments)(ctx)"),
    (CALLS, "", "async def shortcut(tool, ctx): return await drive(tool.tool, {}, ctx)"),
    (CALLS, "", "async def shortcut(tool, ctx): return await partial(tool.tool.call, {})(ctx)"),
    (CALLS, "", "async def shortcut(source, ctx): return await source.send('tools/call', {}, ctx)"),
    (RUNS, "", "async def look(box, ctx): return await box.read(uri, ctx)"),
    (RUNS, "", "async def look(box, ctx): return await box.read(ctx=ctx, uri=uri)"),
    (RUNS, "", "async def look(box, given): return await box.read(*given)"),
    (RUNS, "", "async def look(box, ctx): return await getattr(box, 'read')(uri, ctx)"),
    (RUNS, "", "async def look(box, ctx): return await getattr(box, name)(uri, ctx)"),
    (RUNS, "", "async def look(box, ctx): return await methodcaller('call', {}, ctx)(box)"),
    (RUNS, "", "from gateway.tools.drive import drive as work\nasync def look(box, ctx): await work(box, {}, ctx)"),
    (RUNS, "", "async def look(box, ctx):\n    run = box.call\n    return await run({}, ctx)"),
    ("gateway/tasks/runner.py", "", "async def again(tool, ctx): return await tool.call.__func__(tool, {}, ctx)"),
    ("gateway/server/task_calls.py", "await drive(await self._catalog.seek(tool)", "await drive((await self._catalog.seek(tool)).tool"),
    ("gateway/server/agui_runs.py", "work = self._tool.call", "work = self._tool.tool.call"),
    ("gateway/server/agui_runs.py", "guarded[0].running(work)", "guarded[0].tool"),
    ("gateway/workflows/steps.py", "", "async def act(step, arguments, ctx): return await step.function.run(arguments, ctx)"),
    ("gateway/agents/batch.py", "", "async def act(tool, context): return await tool.run(context.arguments, context.ctx)"),
    ("gateway/agents/batch.py", "", "async def act(tool, arguments): return await tool.func(**arguments)"),
    ("gateway/workflows/steps.py", "", "async def act(reference): return reference.found()"),
    ("gateway/workflows/steps.py", "", "async def act(reference): return await function.run_function(reference.found, [], {})"),
    ("gateway/catalog/catalog.py", "", "async def peek(source, ctx): return await source.skills('skills/list', {}, ctx)"),
]


@pytest.mark.parametrize(("file", "before", "after"), BYPASSES)
def test_bypass_in_source_is_found(file: str, before: str, after: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    changed = text.replace(before, after) if before else f"{text}\n\n{after}\n"
    assert changed != text
    assert {f"{file} {place}" for place in places_in(ast.parse(changed))} - KNOWN.keys()


SOURCE_MODULES = ("source.py", "base.py", "gateway_source.py")


def test_every_method_of_the_source_protocols_is_known() -> None:
    """A method of a source that takes something of a client is a way to run or read, or says why it is not."""
    [tree] = [parsed(path) for path in python_files("gateway") if name_of(path) == "gateway/tools/base.py"]
    methods = {
        item.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith("Source")
        for item in node.body
        if isinstance(item, ast.AsyncFunctionDef) and [each.arg for each in item.args.args[1:]] not in ([], ["kind"])
    }
    assert methods - METHODS.keys() == NOT_READS.keys()


def test_every_method_of_a_source_with_a_context_is_known() -> None:
    found: set[str] = set()
    for path in python_files("gateway"):
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Source") and path.name in SOURCE_MODULES:
                methods = [item for item in node.body if isinstance(item, ast.AsyncFunctionDef)]
                found |= {f"{node.name}.{method.name}" for method in methods if _takes_context(method)}
    assert {name for name in found if name.partition(".")[2] not in METHODS} == CONTEXT_METHODS.keys()


def _takes_context(node: ast.AsyncFunctionDef) -> bool:
    annotations = [argument.annotation for argument in (*node.args.args, *node.args.kwonlyargs) if argument.annotation is not None]
    return not node.name.startswith("_") and any("CallContext" in ast.unparse(annotation) for annotation in annotations)
