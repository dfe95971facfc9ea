"""Places in the package that may call or read something: found by name in the syntax trees, for `test_places`."""

from __future__ import annotations

import ast
from collections.abc import Generator
from typing import cast

from tests.architecture.sources import name_of, parsed, python_files

METHODS = {
    "call": ["arguments", "ctx"],
    "task": ["method", "params", "ctx"],
    "read": ["uri", "ctx"],
    "get_prompt": ["name", "arguments", "ctx"],
    "complete": ["ref", "argument", "context", "ctx"],
    "skills": ["method", "params", "ctx"],
    "watch": ["uri"],
}
"""Methods of tools and sources that run or read something, with their parameters."""

NOT_READS = {"unwatch": "only ends a subscription that `watch` started behind the gate, also after the caller has lost the right to it"}
"""Other methods of sources with a URI or name, each with the reason why it runs and reads nothing."""

COUNTS = {
    **{name: {len(parameters)} for name, parameters in METHODS.items()},
    "read": {2, 3},  # `SkillLibrary.read(skill, path, ctx)`
    "watch": {1, 2},  # `Catalog.watch(uri, ctx)`
    "converse": {3, 4},  # `AgentRuns.converse(messages, tools, ctx, options)`
    "send": {3, 4},  # `UpstreamSource.send(method, params, ctx, headers)`
}
"""Names of methods, with the numbers of arguments with which they run or read something; other numbers belong to other methods."""

RUNNERS = frozenset({"drive", "drive_rounds", "drive_on", "withdraw", "run_gated", "run_function", "record_call", "invoke"})
"""Functions that run the tool or function that their caller gives them."""

HIDDEN = frozenset({"tool", "original", "func", "found"})
"""Attributes that hold the tool behind the gate, a tool's function, or the Python object that a file names."""

BY_NAME = frozenset({"getattr", "attrgetter", "methodcaller"})
"""Functions that find a method by a string."""


DATA = {
    **dict.fromkeys(("config.skills", "expose.skills", "policy.skills", "policy('skill').skills"), "settings"),
    **dict.fromkeys(("file.skills", "file.task"), "keys of a file or definition"),
    **dict.fromkeys(("index.skills", "new.skills", "cache.skills", "remote.skills", "_remote.skills"), "lists of skills"),
    **dict.fromkeys(("_local.skills", "local.skills", "parts.skills"), "objects that have several methods for skills"),
    "scheduled.tool": "the name of the tool of a schedule",
    "agreed.skills": "whether a server supports skills",
    **dict.fromkeys(("ctx.call", "scope.call", "around.call", "context.call"), "the `CallContext` of a run"),
    "row.call": "a stored call: its arguments",
    **dict.fromkeys(("outcome.task", "call.task", "item.task", "context.task", "magentic_context.task", "c.task"), "a task"),
    **dict.fromkeys(("handle.tool", "row.tool", "step.tool", "task.tool"), "the name of a tool"),
    **dict.fromkeys(("os.read", "_file.read", "_folder.read", "_record.read", "spec.read"), "reads a file, or names files"),
    **dict.fromkeys(("bodies.read", "_bodies.read"), "parses the body of a response"),
    **dict.fromkeys(
        ("_readiness.watch", "_watcher.watch", "deadlines.watch", "library.watch", "follow.watch"), "waits, or follows changes"
    ),
    **dict.fromkeys(("follow.read", "at.original"), "lines of a log; messages of an agent's run"),
}
"""The last two names of expressions that are not methods of tools and sources, though `COUNTS` has their names; each with its meaning."""

CALLED = frozenset({"os.read", "_bodies.read", "bodies.read", "_watcher.watch", "deadlines.watch"})
"""The expressions of `DATA` that the package calls with a number of arguments listed in `COUNTS`."""

KNOWN = {
    "gateway/wire/http1_server.py ServerConnection._run: exchange.send": "sends an HTTP response",
    "gateway/telemetry/export_limits.py BoundedSession.send: super().send": "sends traces over HTTP",
    "gateway/workflows/run_stream.py stream_run: channel.send": "sends events of a workflow to its caller",
    "gateway/agents/agent_runs.py AgentRuns.call: self.converse": "the run of an agent's tool, behind the gate",
    "gateway/agents/batch.py ToolBatch._invoke: drive(self._guarded(context.function))": (
        "`_guarded` puts the tool behind the gate of the run's agent"
    ),
    "gateway/agents/lifecycle/turn.py Turn._call: getattr(hook, name)": "calls a lifecycle hook",
    "gateway/agents/mcp_server.py to_mcp_server.call_tool: tool.call": "a program serves its own agent, without a gateway",
    "gateway/agents/providers/memory_provider.py _memory_tools: tools.read": (
        "a function that becomes a tool of an agent's run, behind the gate"
    ),
    "gateway/agents/providers/todo.py _TodoTools.as_tools: self.complete": (
        "a function that becomes a tool of an agent's run, behind the gate"
    ),
    "gateway/agents/tool.py AgentTool.call: (await self._running()).call": "the run of an agent's tool, behind the gate",
    "gateway/agents/tool.py AgentTool.converse: (await self._running()).converse": "the run of an agent's tool, behind the gate",
    "gateway/agents/tool.py ConversationTool.call: self._agent.converse": "the run of an agent's tool, behind the gate",
    "gateway/app/gateway.py Gateway.read_resource: self.catalog.read": "the catalog takes reads through the gate",
    "gateway/catalog/catalog.py Catalog.complete.work: source.complete": "the work of a `Read`",
    "gateway/catalog/catalog.py Catalog.get_prompt.work: source.get_prompt": "the work of a `Read`",
    "gateway/catalog/catalog.py Catalog.get_prompt: listing.reads.read": "the gate itself",
    "gateway/catalog/catalog.py Catalog.read_now.work: source.read": "the work of a `Read`",
    "gateway/catalog/catalog.py Catalog.read_now: listing.reads.read": "the gate itself",
    "gateway/catalog/catalog.py Catalog.watch.subscribe: source.watch": "the work of a `Read`",
    "gateway/catalog/local_sources.py LocalSources.share: self.skills": "the source of skills",
    "gateway/catalog/prompt_tools.py PromptTool.call: self._source.get_prompt": "a tool that renders a prompt, behind the gate",
    "gateway/catalog/skill_catalog.py SkillCatalog._children: source.skills": "the work of a `Read`",
    "gateway/catalog/skill_catalog.py SkillCatalog._directory: source.skills": "the work of a `Read`",
    "gateway/catalog/skill_catalog.py _ask: source.skills": "the work of a `Read`",
    "gateway/catalog/uris.py UriTool.call: self._inner.call": "a tool around a remote tool, behind the gate",
    "gateway/catalog/uris.py UriTool.task: self._inner.task": "a tool around a remote tool, behind the gate",
    "gateway/access/expectations.py Expectation._names_one_item: self.tool": "the name of a tool",
    "gateway/access/expectations.py Expectation.item: self.tool": "the name of a tool",
    "gateway/cli/access_rows.py _tool_of: named.tool": "the guarded tool of a name, whose decisions are asked",
    "gateway/cli/auth.py _row: _file(loaded, server, _url_of(loaded, server)).read": "reads the stored tokens of a server",
    "gateway/cli/call.py _call: drive(found.tool)": "a tool of the hub: guarded, or of a running gateway that guards it",
    "gateway/cli/call.py _call: found.tool": "`HubTool.tool`, not the inside of a guarded tool",
    "gateway/cli/evaluate.py _evaluate: found.tool": "`HubTool.tool`, not the inside of a guarded tool",
    "gateway/cli/evaluate.py _run: drive(tool)": "a tool of the hub: guarded, or of a running gateway that guards it",
    "gateway/cli/lock_command.py Difference.to_json: self.tool": "the name of a tool",
    "gateway/cli/lock_command.py _accept_first: first[name].read": "reads recorded definitions of tools",
    "gateway/cli/lock_command.py _found: first[server].read": "reads recorded definitions of tools",
    "gateway/cli/lock_command.py lock: record.read": "reads recorded definitions of tools",
    "gateway/cli/policy.py _explain: named.tool": "the name of a tool",
    "gateway/server/agui_runs.py _RunResponse._run: self._tool.call": "a `GuardedTool`",
    "gateway/server/calls.py CallHandler._attended.run: tool.call": "a `GuardedTool`",
    "gateway/server/calls.py CallHandler.run: tool.call": "a `GuardedTool`",
    "gateway/server/calls.py CallHandler.run_legacy: drive(tool)": "a `GuardedTool`",
    "gateway/server/calls.py CallHandler.run_legacy: drive_on(outcome)": "repeats a call of a `GuardedTool`",
    "gateway/server/calls.py CallHandler.run_legacy: tool.call": "a `GuardedTool`",
    "gateway/server/calls.py CallHandler.run_plain: tool.call": "a `GuardedTool`",
    "gateway/server/gateway_server.py GatewayServer.__aenter__: handler.call": "`TaskHandler.call`, which calls a tool of the catalog",
    "gateway/server/parked.py ParkedCalls.note_remote_parked: withdraw": "repeats a call or read that was behind the gate",
    "gateway/server/sdk_path/call_methods.py CallMethods._again: (await self._catalog.seek(name)).call": (
        "a tool of the catalog is behind the gate"
    ),
    "gateway/server/sdk_path/listen_streams.py ListenStreams.listen.watch: self._catalog.watch": (
        "the catalog takes reads through the gate"
    ),
    "gateway/server/sdk_path/read_methods.py ReadMethods._answer: drive_rounds(work)": "repeats a read of the catalog",
    "gateway/server/sdk_path/read_methods.py ReadMethods.complete: self._catalog.complete": "the catalog takes reads through the gate",
    "gateway/server/sdk_path/read_methods.py ReadMethods.get_prompt: self._catalog.get_prompt": "the catalog takes reads through the gate",
    "gateway/server/sdk_path/read_methods.py ReadMethods.read: self._catalog.read": "the catalog takes reads through the gate",
    "gateway/server/sdk_path/sdk_server.py SdkServer._register: reads.complete": "a method of `ReadMethods`",
    "gateway/server/sdk_path/sdk_server.py SdkServer._register: reads.get_prompt": "a method of `ReadMethods`",
    "gateway/server/sdk_path/sdk_server.py SdkServer._register: reads.read": "a method of `ReadMethods`",
    "gateway/server/sdk_path/task_methods.py TaskMethods._relay: tool.task": "a `GuardedTool`",
    "gateway/server/watches.py Watches.add: self._catalog.watch": "the catalog takes reads through the gate",
    "gateway/server/task_calls.py TaskHandler._state_of_relayed: tool.task": "a `GuardedTool`",
    "gateway/server/task_calls.py TaskHandler.call: drive(await self._catalog.seek(tool))": "a tool of the catalog is behind the gate",
    "gateway/sessions/semantic_memory.py _through_gate: drive(step if guard is None else guard.step(step))": (
        "a step that the guard of the run's agent wraps"
    ),
    "gateway/skills/code.py CodeSkills.refresh: self.skills": "the list of skills",
    "gateway/skills/library.py SkillLibrary.recheck: self.read": "a skill tool or a read of the source `skill`, behind the gate",
    "gateway/skills/objects/code_skills.py InlineSkillResource.read: run_function(self.function)": (
        "a skill in code, for a skill tool or read behind the gate"
    ),
    "gateway/skills/objects/code_skills.py InlineSkillScript.run: run_function(self.function)": (
        "a skill in code, for a skill tool or read behind the gate"
    ),
    "gateway/skills/objects/skill.py use_member: resource.read": (
        "a skill in code, for a skill tool or read behind the gate, or a tool of `SkillsProvider`, which is a tool of the agent"
    ),
    "gateway/skills/run_tool.py RunSkillScript._files: self._library.read": "a skill tool, behind the gate",
    "gateway/skills/sandbox/kernel.py call: getattr(LIBC, name)": "a function of the C library",
    "gateway/skills/skill_tools.py ReadSkillResource.call: self._library.read": "a skill tool, behind the gate",
    "gateway/skills/source.py SkillSource.read: self.library.read": "a read of the source `skill`, behind the gate",
    "gateway/storage/object_bucket.py Bucket._probe: self.read": "an object of the bucket with kept results",
    "gateway/storage/result_objects.py ObjectResults._open: self._bucket.read": "a kept result, for `read_result` behind the gate",
    "gateway/storage/result_objects.py ObjectResults._read: self._bucket.read": "a kept result, for `read_result` behind the gate",
    "gateway/storage/task_rows.py TaskRows.stranded: tasks.c.tool": "the name of a tool",
    "gateway/storage/record_types.py TaskRow.to_json: self.tool": "the name of a tool",
    "gateway/tasks/inline_call.py InlineCall._drive: drive_rounds(call)": "repeats a call of a `GuardedTool`",
    "gateway/tools/base.py ToolDefinition.to_wire: self.task": "the value of `taskSupport`",
    "gateway/tools/drive.py drive: drive_rounds(lambda leg: tool.call(arguments, leg))": (
        "the caller's tool: its callers are in this table"
    ),
    "gateway/tools/drive.py drive: tool.call": "the caller's tool: its callers are in this table",
    "gateway/tools/drive.py drive_on: withdraw(asked)": "the caller's work: its callers are in this table",
    "gateway/tools/drive.py drive_rounds: drive_on(outcome)": "the caller's work: its callers are in this table",
    "gateway/tools/function.py FunctionTool._value: run_function(self.func)": "the call of a function tool, behind the gate",
    "gateway/tools/tool_lists.py by_name: getattr(item, 'original', item)": "compares two tools",
    "gateway/tools/tool_lists.py by_name: getattr(known, 'original', known)": "compares two tools",
    "gateway/tools/wrappers.py RenamedTool.call: self.inner.call": (
        "a tool under another name, called by the gate or around a guarded tool"
    ),
    "gateway/upstream/definition_rows.py SharedDefinitions._read: tool_definitions.c.tool": "a column with the names of tools",
    "gateway/upstream/oauth/grant_rows.py SharedGrant._take_over: self._own.read": "reads the stored tokens of a server",
    "gateway/upstream/library/mcp_tool.py MCPTool._run: drive(guarded)": "a `GuardedTool`",
    "gateway/workflows/file_graph.py made_by: run_function(make)": (
        "in a call behind the gate by `gated_function`; at load admitted by `FunctionRules`, and audited"
    ),
    "gateway/workflows/function_executor.py FunctionExecutor._call: run_function(self._func)": (
        "a function of a program's graph, which runs inside a workflow's tool"
    ),
    "gateway/workflows/functional_steps.py RunContext.within_step: self.call": "the `CallContext` of a run",
    "gateway/workflows/gated_functions.py gated_function.run: run_function(function)": (
        "the work that the next line takes through the gate"
    ),
    "gateway/workflows/gated_functions.py gated_function.run: run_gated(reference)": "the gate itself",
    "gateway/workflows/gated_functions.py run_gated: drive(behind)": "a tool that the guard of the run's workflow wraps",
    "gateway/workflows/orchestrations/concurrent.py CallAggregator.aggregate: run_function(self._function)": (
        "`gated_function` puts the function of a file behind the gate"
    ),
    "gateway/workflows/source.py WorkflowSource.tools: loaded.tool": "the workflow's tool, for the catalog, which guards it",
    "gateway/workflows/steps.py AskAgent.perform: invoke(self._tool)": "a tool of the toolbox is behind the gate",
    "gateway/workflows/steps.py CallFunction.perform: run_gated(self._reference)": "the gate itself",
    "gateway/workflows/steps.py CallTool.perform: invoke(self._tool)": "a tool of the toolbox is behind the gate",
    "gateway/workflows/steps.py invoke: drive(tool)": "the caller's tool: its callers are in this table",
    "gateway/workflows/tool.py WorkflowTool._find_tools: invoke(held)": "a quarantined tool: the gate refuses the call",
    "gateway/workflows/tool_agent.py ToolChatClient._updates: invoke(self._tool)": "a tool of the toolbox is behind the gate",
    "gateway/workflows/tool_agent.py ToolChatClient._updates: self.call": "the `CallContext` of a run",
    "gateway/server/agui_runs.py _RunResponse._run: self._parked.run": "parks the call of a `GuardedTool`",
    "gateway/server/calls.py CallHandler.run: self._parked.run": "parks the call of a `GuardedTool`",
    "gateway/skills/run_tool.py RunSkillScript._run_function: backend.run": (
        "runs the function of a skill for the tool `run_skill_script`, behind the gate"
    ),
    "gateway/tasks/task_executor.py TaskExecutor._run_inline: call.run": "the work of a task, which calls a tool of the catalog",
    "gateway/tools/function.py FunctionTool.__call__: self.func": "a program calls its own function",
    "gateway/tools/function.py FunctionTool.__get__: self.func": "binds a method to its object",
    "gateway/tools/function.py FunctionTool.__init__: func.func": "takes over the function of another tool",
    "gateway/tools/function.py FunctionTool._schema: self.func": "reads the signature",
    "gateway/tools/function.py FunctionTool._value: self.func": "the work of the tool, behind the gate",
    "gateway/tools/function.py FunctionTool.call: self.run": "the work of the tool, behind the gate",
    "gateway/tools/function.py _is_async: func.func": "finds out whether a function is async",
    "gateway/tools/functions_source.py _inside: cast('FunctionTool[..., Any]', found).func": "finds the name of a function",
    "gateway/tools/functions_source.py _inside: cast('partial[Any]', found).func": "finds the name of a function",
    "gateway/tools/schema.py _hints: target.func": "reads the signature",
    "gateway/upstream/poisoning_check.py PoisoningCheck.judge: self.found": "suspicious texts",
    "gateway/upstream/relayed_calls.py RelayedCalls._subscribe: self._target.watch": "another replica took it through its gate",
    "gateway/upstream/source.py UpstreamSource.status: self.lists.suspicions.found": "suspicious texts",
    "gateway/workflows/functional.py FunctionalWorkflow.book: item.func": "reads the source text of a step",
    "gateway/workflows/gated_functions.py gated_function: reference.found": "the function of a step, whose rule `FunctionRules` judges",
    "gateway/workflows/gated_functions.py run_gated: reference.found": "the function of a step, behind the gate of the workflow",
    "gateway/workflows/steps.py _FunctionRun._run: self._function.run": "the work of a step, behind the gate of the workflow",
}
"""Places that may run or read something, each with the reason why the gate sees it, or why it runs and reads nothing."""


def places() -> set[str]:
    """`FILE FUNCTION: EXPRESSION` of each place outside `gateway/gate/` that may run or read something, except `DATA`.

    A place refers to a method in `COUNTS`: it calls the method with that number of arguments, or uses it as a value. Or it refers to a
    function in `RUNNERS`, also under another name (with the first argument of a call), finds a method by a string, or takes a tool out
    of the object that guards it. Inside `upstream`, `send` is not listed: there it does the work of the methods in `METHODS`.
    """
    files = [path for path in python_files("gateway") if not name_of(path).startswith("gateway/gate/")]
    found = {f"{name_of(path)} {place}" for path in files for place in places_in(parsed(path))}
    return {place for place in found if not (place.startswith("gateway/upstream/") and place.endswith(".send"))}


def places_in(tree: ast.Module) -> Generator[str]:
    """`FUNCTION: EXPRESSION` of each place in a module that may run or read something, except `DATA`."""
    runners = {node.name: node.name for node in tree.body if isinstance(node, ast.AsyncFunctionDef) and node.name in RUNNERS}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            runners |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name in RUNNERS}
    for node, parent, function in _walk(tree, tree, ""):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            name = runners.get(node.id) if isinstance(node, ast.Name) else node.attr
            if name in RUNNERS:
                is_call = isinstance(parent, ast.Call) and parent.func is node and parent.args
                yield f"{function}: {name}" + (f"({ast.unparse(cast('ast.Call', parent).args[0])})" if is_call else "")
            elif isinstance(node, ast.Attribute) and _is_way(node, parent):
                yield f"{function}: {ast.unparse(node)}"
        if isinstance(node, ast.Call) and _finds_by_name(node, parent):
            yield f"{function}: {ast.unparse(node)}"


def _walk(node: ast.AST, parent: ast.AST, function: str) -> Generator[tuple[ast.AST, ast.AST, str]]:
    yield node, parent, function
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".removeprefix(".")
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, node, function)


def _is_way(node: ast.Attribute, parent: ast.AST) -> bool:
    counts = COUNTS.get(node.attr, set[int]())
    is_called = isinstance(parent, ast.Call) and parent.func is node
    if node.attr == "run":  # `FunctionTool.run(arguments, ctx)`; many other objects have a method of this name
        return is_called and any(ast.unparse(given).endswith("ctx") for given in cast("ast.Call", parent).args[1:])
    if is_called and counts:
        return _may_have(cast("ast.Call", parent), node.attr, counts) and _last_two(node) not in CALLED
    if not counts and node.attr not in HIDDEN:
        return False
    return not _is_data(node, parent) and _last_two(node) not in DATA


def _last_two(node: ast.Attribute) -> str:
    return ".".join(ast.unparse(node).split(".")[-2:])


def _may_have(call: ast.Call, name: str, counts: set[int]) -> bool:
    """Return whether a call may have one of these numbers of arguments and has only keywords of the listed methods."""
    if any(isinstance(argument, ast.Starred) for argument in call.args) or any(word.arg is None for word in call.keywords):
        return True
    known = {*METHODS.get(name, ()), "ctx", "skill", "path", "messages", "tools", "options"}
    return len(call.args) + len(call.keywords) in counts and all(word.arg in known for word in call.keywords)


def _is_data(node: ast.Attribute, parent: ast.AST) -> bool:
    """Whether the attribute is used as a value that no bound method can be: it has members or items, or is compared, repeated or tested."""
    match parent:
        case ast.Attribute():
            return not parent.attr.startswith("__")
        case ast.Subscript() | ast.For() | ast.comprehension():
            return True
        case ast.Compare() | ast.FormattedValue() | ast.BinOp() | ast.UnaryOp() | ast.Starred():
            return True
        case ast.If() | ast.IfExp() | ast.While():
            return parent.test is node
        case _:
            return False


def _finds_by_name(call: ast.Call, parent: ast.AST) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name not in BY_NAME or not call.args:
        return False
    wanted = call.args[0 if name != "getattr" else 1]
    if not isinstance(wanted, ast.Constant):
        return name != "getattr" or (isinstance(parent, ast.Call) and parent.func is call)
    return wanted.value in COUNTS or wanted.value in RUNNERS or wanted.value in HIDDEN
