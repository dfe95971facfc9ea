"""`SkillsProvider`: instructions, and the tools to load, read and run."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway import (
    Agent,
    AgentResponse,
    AgentSession,
    CallContext,
    ClassSkill,
    Content,
    FileSkill,
    FileSkillScript,
    FunctionInvocationContext,
    FunctionTool,
    InlineSkill,
    InlineSkillResource,
    Message,
    ScriptedChatClient,
    Skill,
    SkillFrontmatter,
    SkillsProvider,
    SkillsSource,
)
from gateway.errors import ToolFailed
from gateway.sessions.session_context import SessionContext
from gateway.skills.objects.sources import SkillsSourceContext
from gateway.tools.base import Complete, Tool
from gateway.tools.context import AgentScope
from tests.skills.on_disk import write_skill


def skill(name: str, description: str = "d") -> InlineSkill:
    return InlineSkill(frontmatter=SkillFrontmatter(name=name, description=description), instructions=f"How to {name}.")


async def run(provider: SkillsProvider) -> SessionContext:
    """Return what the provider adds to one run."""
    context = SessionContext(input_messages=[])
    await provider.before_run(agent=SimpleNamespace(), session=AgentSession(), context=context, state={})  # pyright: ignore[reportArgumentType]
    return context


async def tools(provider: SkillsProvider) -> dict[str, Tool]:
    return {tool.definition.name: tool for tool in (await run(provider)).tools}


async def call(provider: SkillsProvider, name: str, host: Any = None, **arguments: Any) -> str:
    tool = (await tools(provider))[name]
    outcome = await tool.call(arguments, CallContext(run=AgentScope(invocation=FunctionInvocationContext(tool, arguments, kwargs=host))))
    assert isinstance(outcome, Complete)
    return outcome.as_text()


@pytest.mark.requirement(109, "SK2")
async def test_provider_instructions_are_sorted_and_escaped() -> None:
    context = await run(SkillsProvider([skill("b"), skill("a", "Use <it> & win")]))
    (text,) = context.instructions
    assert text.index("<name>a</name>\n    <description>Use &lt;it&gt; &amp; win</description>") < text.index("<name>b</name>")
    assert [tool.definition.name for tool in context.tools] == ["load_skill", "read_skill_resource", "run_skill_script"]


@pytest.mark.requirement(109)
async def test_no_skills_add_nothing() -> None:
    context = await run(SkillsProvider([]))
    assert (context.instructions, context.tools) == ([], [])


@pytest.mark.requirement(110)
async def test_custom_template_is_used() -> None:
    context = await run(SkillsProvider(skill("a", "{braces}"), instruction_template="Have {{these}}:\n{skills}\n{runner_instructions}"))
    assert context.instructions[0].startswith("Have {these}:\n  <skill>") and "{braces}" in context.instructions[0]
    assert "run_skill_script" in context.instructions[0]


@pytest.mark.requirement(110)
@pytest.mark.parametrize("template", ["no placeholder", "{skills} {other}", "{skills} {", "{skills} {}", "{skills.x}", "{{skills}}"])
async def test_invalid_template_is_an_error_at_first_use(template: str) -> None:
    await run(SkillsProvider([], instruction_template=template))
    with pytest.raises(ValueError, match="template"):
        await run(SkillsProvider(skill("a"), instruction_template=template))


@pytest.mark.requirement(111, 113, "SK10")
async def test_skill_name_ignores_case() -> None:
    assert "How to pdf." in await call(SkillsProvider(skill("pdf")), "load_skill", skill_name="PDF")


@pytest.mark.requirement(113, "SK10")
@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("load_skill", {"skill_name": " "}, "empty"),
        ("load_skill", {"skill_name": "gone"}, "'gone'"),
        ("read_skill_resource", {"skill_name": "gone", "resource_name": "r"}, "'gone'"),
        ("read_skill_resource", {"skill_name": "pdf", "resource_name": "none.md"}, "'none.md'"),
        ("read_skill_resource", {"skill_name": "pdf", "resource_name": ""}, "empty"),
        ("run_skill_script", {"skill_name": "pdf", "script_name": "none.py"}, "'none.py'"),
        ("run_skill_script", {"skill_name": "pdf", "script_name": " "}, "empty"),
    ],
)
async def test_missing_names_are_answered_with_text(name: str, arguments: dict[str, str], said: str) -> None:
    text = await call(SkillsProvider(skill("pdf")), name, **arguments)
    assert text.startswith("Error: ") and said in text


@pytest.mark.requirement(115, 120)
async def test_only_host_values_reach_functions() -> None:
    made = skill("pdf")

    @made.resource
    def whose(**kwargs: object) -> object:
        return dict(kwargs)

    @made.script
    def act(what: str, **kwargs: object) -> object:
        return {"what": what, **kwargs}

    provider = SkillsProvider(made)
    assert await call(provider, "read_skill_resource", {"user": "me"}, skill_name="pdf", resource_name="whose") == '{"user": "me"}'
    done = await call(provider, "run_skill_script", {"user": "me"}, skill_name="pdf", script_name="act", args={"what": "x"})
    assert done == '{"what": "x", "user": "me"}'
    with pytest.raises(ToolFailed, match="user"):
        await call(provider, "run_skill_script", {"user": "me"}, skill_name="pdf", script_name="act", args={"what": "x", "user": "you"})
    for name, arguments in (("read_skill_resource", {"resource_name": "whose"}), ("run_skill_script", {"script_name": "act"})):
        with pytest.raises(ToolFailed, match="user"):
            await call(provider, name, None, skill_name="pdf", user="you", **arguments)


class Recorder:
    """A runner that records its arguments."""

    def __init__(self) -> None:
        self.given: list[tuple[str, str, object]] = []

    def __call__(self, skill: FileSkill, script: FileSkillScript, args: object = None) -> str:
        self.given.append((skill.frontmatter.name, script.name, args))
        return "ran"


@pytest.mark.requirement(118, "SK5")
@pytest.mark.parametrize("args", [["a.txt", "--all"], {"length": 24}, None])
async def test_runner_gets_unchanged_arguments(tmp_path: Path, args: object) -> None:
    write_skill(tmp_path / "pdf", files={"scripts/run.py": "print()"})
    runner = Recorder()

    async def later(skill: FileSkill, script: FileSkillScript, args: object = None) -> str:
        return runner(skill, script, args)

    for each in (runner, later):
        provider = SkillsProvider.from_paths(tmp_path, script_runner=each)
        assert await call(provider, "run_skill_script", skill_name="pdf", script_name="scripts/run.py", args=args) == "ran"
    assert runner.given == [("pdf", "scripts/run.py", args)] * 2


@pytest.mark.requirement(116, "SK5")
async def test_script_in_code_bypasses_runner(tmp_path: Path) -> None:
    made = skill("code")

    @made.script
    def act() -> str:
        return "in process"

    assert await call(SkillsProvider(made), "run_skill_script", skill_name="code", script_name="act") == "in process"


@pytest.mark.requirement(119, "SK5")
async def test_file_script_needs_runner_and_file_skill(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={"run.py": "print()"})
    with pytest.raises(ToolFailed, match="runner"):
        await call(SkillsProvider.from_paths(tmp_path), "run_skill_script", skill_name="pdf", script_name="run.py")
    runner = Recorder()
    script = FileSkillScript(name="run.py", full_path=str(tmp_path / "pdf" / "run.py"), runner=runner)
    other = InlineSkill(frontmatter=SkillFrontmatter(name="code", description="d"), instructions="", scripts=[script])
    with pytest.raises(ToolFailed, match="FileSkill"):
        await call(SkillsProvider(other), "run_skill_script", skill_name="code", script_name="run.py")
    assert runner.given == []


@pytest.mark.requirement(117, 121)
@pytest.mark.attack(28)
async def test_failure_is_an_error_result_without_traceback(caplog: pytest.LogCaptureFixture) -> None:
    made = skill("pdf")

    @made.resource
    def broken() -> None:
        raise RuntimeError("secret detail")

    @made.script
    def act(what: str) -> None:
        raise RuntimeError("secret detail")

    provider = SkillsProvider(made)
    for name, arguments in (
        ("read_skill_resource", {"resource_name": "broken"}),
        ("run_skill_script", {"script_name": "act", "args": {"what": "x"}}),
    ):
        caplog.clear()
        with pytest.raises(ToolFailed, match="Failed to") as failed:
            await call(provider, name, skill_name="pdf", **arguments)
        assert "secret detail" not in str(failed.value)
        assert [(r.levelno, r.exc_info is not None) for r in caplog.records] == [(logging.ERROR, True)]
    with pytest.raises(ToolFailed, match="object of named arguments"):
        await call(provider, "run_skill_script", skill_name="pdf", script_name="act", args=["x"])


class Source(SkillsSource):
    """A source of the caller, which may return duplicates and is called each time."""

    def __init__(self) -> None:
        self.asked: list[SkillsSourceContext | None] = []

    async def get_skills(self, context: SkillsSourceContext | None = None) -> list[Skill]:
        self.asked.append(context)
        return [skill("pdf", "first"), skill("pdf", "second")]


@pytest.mark.requirement(123, "SK12")
async def test_given_skills_are_deduplicated() -> None:
    (text,) = (await run(SkillsProvider([skill("pdf", "first"), skill("pdf", "second")]))).instructions
    assert "first" in text and "second" not in text
    provider = SkillsProvider(source := Source())
    (text,) = (await run(provider)).instructions
    await run(provider)
    assert "first" in text and "second" in text and len(source.asked) == 2
    assert all(context is not None and context.session is not None for context in source.asked)


@pytest.mark.requirement(123)
async def test_folders_are_read_once_with_caching(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    kept, fresh = SkillsProvider.from_paths(tmp_path), SkillsProvider.from_paths(str(tmp_path), disable_caching=True)
    for provider in (kept, fresh):
        await run(provider)
    write_skill(tmp_path / "b")
    assert ["<name>b</name>" in (await run(provider)).instructions[0] for provider in (kept, fresh)] == [False, True]


def test_path_is_not_a_source(tmp_path: Path) -> None:
    for path in (tmp_path, str(tmp_path)):
        with pytest.raises(TypeError, match="from_paths"):
            SkillsProvider(path)  # pyright: ignore[reportArgumentType]


@pytest.mark.requirement(133, "SK11")
@pytest.mark.parametrize(
    ("options", "gated"),
    [
        ({}, {"run_skill_script"}),
        ({"require_script_approval": False}, set[str]()),
        ({"disable_run_skill_script_approval": True}, set[str]()),
        (
            {"disable_load_skill_approval": False, "disable_read_skill_resource_approval": False},
            {"load_skill", "read_skill_resource", "run_skill_script"},
        ),
    ],
)
async def test_only_scripts_need_approval_by_default(options: dict[str, Any], gated: set[str]) -> None:
    offered = await tools(SkillsProvider(skill("a"), **options))
    assert {name for name, tool in offered.items() if getattr(tool, "approval_mode", None) == "always_require"} == gated


def test_approval_rules_match_skill_tools() -> None:
    calls = [SimpleNamespace(name=name) for name in ("load_skill", "read_skill_resource", "run_skill_script", "other")]
    assert [SkillsProvider.read_only_tools_auto_approval_rule(c) for c in calls] == [True, True, False, False]
    assert [SkillsProvider.all_tools_auto_approval_rule(c) for c in calls] == [True, True, True, False]
    assert not SkillsProvider.all_tools_auto_approval_rule(SimpleNamespace(name="load_skill", hosted=True))


async def test_class_skill_works_through_tools() -> None:
    class Units(ClassSkill):
        @property
        def instructions(self) -> str:
            return "Convert."

        @ClassSkill.script
        def double(self, value: float) -> float:
            return value * 2

    provider = SkillsProvider(Units(frontmatter=SkillFrontmatter(name="units", description="d")))
    assert "Convert." in await call(provider, "load_skill", skill_name="units")
    assert await call(provider, "run_skill_script", skill_name="units", script_name="double", args={"value": 2}) == "4"


@pytest.mark.requirement("SK2", 109, 111, 117, 133)
@pytest.mark.parametrize("stream", [False, True])
async def test_agent_loads_reads_and_runs_skill_after_approval(stream: bool) -> None:
    skill = InlineSkill(
        frontmatter=SkillFrontmatter(name="units", description="Convert units."),
        instructions="Read `factors`, then run `convert`.",
        resources=[InlineSkillResource(name="factors", content="mile 1.609")],
    )
    ran: list[float] = []

    @skill.script
    def convert(miles: float) -> str:
        ran.append(miles)
        return f"{miles * 1.609:.3f} km"

    units = {"skill_name": "units"}
    calls = [
        Content.from_function_call("c1", "load_skill", arguments=units),
        Content.from_function_call("c2", "read_skill_resource", arguments={**units, "resource_name": "factors"}),
        Content.from_function_call("c3", "run_skill_script", arguments={**units, "script_name": "convert", "args": {"miles": 2}}),
    ]
    client = ScriptedChatClient([*calls, "It is 3.218 km."])
    agent = Agent(client, "Help.", context_providers=[SkillsProvider(skill)])
    session = agent.create_session()

    async def run(said: str | Message) -> AgentResponse:
        if stream:
            return await agent.run(said, session=session, stream=True).get_final_response()
        return await agent.run(said, session=session)

    asked = await run("How far are 2 miles?")
    (question,) = asked.user_input_requests
    assert (question.function_call and question.function_call.name, ran) == ("run_skill_script", [])
    done = await run(Message("user", [question.to_function_approval_response(True)]))
    assert (done.text, ran) == ("It is 3.218 km.", [2])
    seen = str([c.result for messages, _ in client.requests for m in messages for c in m.contents if c.type == "function_result"])
    assert "<instructions>" in seen and "mile 1.609" in seen and "3.218 km" in seen
    assert "<name>units</name>" in str(client.requests[0][1].get("instructions")) or any(
        "<name>units</name>" in m.text for m in client.requests[0][0]
    )


def narrowing(name: str, allowed: str | None) -> InlineSkill:
    return InlineSkill(frontmatter=SkillFrontmatter(name=name, description="d", allowed_tools=allowed), instructions="Do it.")


@pytest.mark.requirement(134)
@pytest.mark.parametrize(
    ("narrows", "left"),
    [
        (True, [["read_table"], ["read_table", "send_mail"], ["drop_table", "read_table", "send_mail"]]),
        (False, [["drop_table", "read_table", "send_mail"]] * 3),
    ],
)
async def test_allowed_tools_of_loaded_skills_narrow_run(narrows: bool, left: list[list[str]]) -> None:
    skills = [narrowing("a", "read_table no_such_tool"), narrowing("b", "send_mail"), narrowing("c", None)]
    calls = [[Content.from_function_call(name, "load_skill", f'{{"skill_name": "{name}"}}')] for name in "abc"]
    client = ScriptedChatClient([*calls, "Done."])
    own = [FunctionTool(lambda: "ok", name=name) for name in ("read_table", "send_mail", "drop_table")]
    agent = Agent(client, tools=own, context_providers=[SkillsProvider(skills, narrow_to_skills=narrows)])
    await agent.run("go")
    offered = [[tool.definition.name for tool in options.get("tools", ())] for _, options in client.requests]
    assert [sorted(set(names) - {"load_skill", "read_skill_resource", "run_skill_script"}) for names in offered[1:]] == left
    assert all("load_skill" in names for names in offered)
