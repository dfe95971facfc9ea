"""Files, functions and parameter lists stay small enough to read."""

from __future__ import annotations

import ast

from tests.architecture.sources import name_of, parsed, ruled_files

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
MAX_PARAMETERS = 8

MOVED_OVER = {
    "gateway/workflows/orchestrations/group_chat.py GroupChatBuilder.__init__",
    "gateway/workflows/orchestrations/magentic.py MagenticBuilder.__init__",
    "gateway/workflows/orchestrations/magentic_manager.py StandardMagenticManager.__init__",
    "gateway/chat/embeddings.py OpenAIEmbeddingClient.__init__",
    "gateway/chat/openai_base.py OpenAIClientBase.__init__",
    "gateway/types/responses.py AgentResponseUpdate.__init__",
    "gateway/types/responses.py ChatResponseUpdate.__init__",
    "gateway/agents/agent.py Agent.__init__",
    "gateway/agents/evaluation/evaluators.py evaluate_agent",
    "gateway/harness.py create_harness_agent",
    "gateway/workflows/evaluation.py evaluate_workflow",
    "gateway/agents/agent.py Agent.run",
    "gateway/agents/providers/mem0_provider.py Mem0ContextProvider.__init__",
    "gateway/agents/providers/memory_provider.py MemoryContextProvider.__init__",
    "gateway/agents/providers/memory_store.py MemoryFileStore.__init__",
    "gateway/agents/remote/a2a_agent.py A2AAgent.__init__",
    "gateway/sessions/session_context.py SessionContext.__init__",
    "gateway/skills/objects/file_source.py FileSkillsSource.__init__",
    "gateway/skills/objects/skills_provider.py SkillsProvider.__init__",
    "gateway/skills/objects/skills_provider.py SkillsProvider.from_paths",
    "gateway/tools/function.py FunctionTool.__init__",
    "gateway/tools/function.py tool",
    "gateway/types/responses.py AgentResponse.__init__",
    "gateway/types/responses.py ChatResponse.__init__",
}
"""Take more parameters than the rule allows, because code written for agent-framework names them."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> list[Function]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def named_functions(tree: ast.AST, prefix: str = "") -> list[tuple[str, Function]]:
    """Every function with its qualified name."""
    found: list[tuple[str, Function]] = []
    for node in ast.iter_child_nodes(tree):
        is_named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        name = f"{prefix}{node.name}" if is_named else prefix.removesuffix(".")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((name, node))
        found += named_functions(node, f"{name}." if name else "")
    return found


def parameters(function: Function) -> int:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    own = [argument for argument in named if argument.arg not in ("self", "cls")]
    return len(own) + (arguments.vararg is not None) + (arguments.kwarg is not None)


def test_no_file_is_longer_than_allowed() -> None:
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in ruled_files()}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_eighty_lines() -> None:
    long = [
        f"{name_of(path)}:{function.lineno} {function.name}"
        for path in ruled_files()
        for function in functions(parsed(path))
        if (function.end_lineno or 0) - function.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_no_function_takes_more_than_eight_parameters() -> None:
    wide = {
        f"{name_of(path)} {name}"
        for path in ruled_files()
        for name, function in named_functions(parsed(path))
        if parameters(function) > MAX_PARAMETERS
    }
    assert wide == MOVED_OVER
