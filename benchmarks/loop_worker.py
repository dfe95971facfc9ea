"""The worker process of `benchmarks.loop` for one framework: runs agents on command and prints their CPU time.

    python loop_worker.py NAME BASE_URL

The worker reads lines `SCENARIO RUNS` from stdin and, for each line, prints the CPU seconds of all runs together. A scenario is `plain`
(one model call), `tools` (a model call that requests eight tool calls, then a second model call), or either with `-streamed`. Only the
function `moongate` imports Moongate, because the environments of the other frameworks do not contain it.
"""

from __future__ import annotations

import json
import sys
import time
from asyncio import gather  # noqa: TID251  # the other environments may lack anyio
from asyncio import run as run_loop  # noqa: TID251  # as above
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

MODEL = "bench"
INSTRUCTIONS = "Be brief."
Run = Callable[[str, bool], Awaitable[str]]


def weather(city: str, day: int = 0) -> str:
    """The weather in a city."""
    return f"sunny in {city} on day {day}"


async def weather_async(city: str, day: int = 0) -> str:
    """The weather in a city."""
    return weather(city, day)


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "day": {"type": "integer", "default": 0}},
    "required": ["city"],
}
TOOL = {"type": "function", "function": {"name": "weather_async", "description": "The weather in a city.", "parameters": SCHEMA}}


def imported(name: str) -> Any:
    """Import a module that only the environment of another framework contains, so type checkers cannot resolve it."""
    return import_module(name)


def bare(url: str) -> Run:
    """Return a minimal agent loop on the `openai` package, the baseline for the overhead of the frameworks."""
    from openai import AsyncOpenAI

    client: Any = AsyncOpenAI(api_key="x", base_url=url)

    async def answer(messages: list[Any], stream: bool) -> tuple[str, list[dict[str, str]]]:
        if not stream:
            response = await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
            message = response.choices[0].message
            calls = [{"id": c.id, "name": c.function.name, "arguments": c.function.arguments} for c in message.tool_calls or ()]
            return message.content or "", calls
        text, found = "", dict[int, dict[str, str]]()
        parts = await client.chat.completions.create(
            model=MODEL, messages=messages, tools=[TOOL], stream=True, stream_options={"include_usage": True}
        )
        async for part in parts:
            if not part.choices:
                continue
            delta = part.choices[0].delta
            text += delta.content or ""
            for piece in delta.tool_calls or ():
                call = found.setdefault(piece.index, {"id": "", "name": "", "arguments": ""})
                call["id"] = piece.id or call["id"]
                call["name"] += piece.function.name or ""
                call["arguments"] += piece.function.arguments or ""
        return text, list(found.values())

    async def run(task: str, stream: bool) -> str:
        messages: list[Any] = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": task}]
        while True:
            text, calls = await answer(messages, stream)
            if not calls:
                return text
            wire = [{"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}} for c in calls]
            messages.append({"role": "assistant", "content": text or None, "tool_calls": wire})
            results = await gather(*(weather_async(**json.loads(c["arguments"])) for c in calls))
            messages += [{"role": "tool", "tool_call_id": c["id"], "content": r} for c, r in zip(calls, results, strict=True)]

    return run


def moongate(url: str) -> Run:
    """Return a function that runs a Moongate agent."""
    from gateway import Agent, OpenAIChatCompletionClient

    client = OpenAIChatCompletionClient(MODEL, api_key="x", base_url=url)
    agent = Agent(client, INSTRUCTIONS, tools=[weather_async])

    async def run(task: str, stream: bool) -> str:
        if not stream:
            return (await agent.run(task)).text
        return "".join([update.text async for update in agent.run(task, stream=True)])

    return run


def agent_framework(url: str) -> Run:
    """Return a function that runs an agent of agent-framework."""
    agents, clients = imported("agent_framework"), imported("agent_framework.openai")
    client = clients.OpenAIChatCompletionClient(MODEL, api_key="x", base_url=url)
    agent = agents.Agent(client=client, instructions=INSTRUCTIONS, tools=[weather_async])

    async def run(task: str, stream: bool) -> str:
        if not stream:
            return (await agent.run(task)).text
        return "".join([update.text or "" async for update in agent.run(task, stream=True)])

    return run


def pydantic_ai(url: str) -> Run:
    """Return a function that runs an agent of Pydantic AI."""
    models, providers = imported("pydantic_ai.models.openai"), imported("pydantic_ai.providers.openai")
    model = models.OpenAIChatModel(MODEL, provider=providers.OpenAIProvider(api_key="x", base_url=url))
    agent = imported("pydantic_ai").Agent(model, instructions=INSTRUCTIONS, tools=[weather_async])

    async def run(task: str, stream: bool) -> str:
        if not stream:
            return (await agent.run(task)).output
        async with agent.run_stream(task) as streamed:
            return "".join([part async for part in streamed.stream_text(delta=True, debounce_by=None)])

    return run


async def serve(run: Run) -> None:
    """Execute each command line from stdin and print its CPU seconds.

    Raises:
        SystemExit: A run returned an unexpected text.
    """
    for line in sys.stdin:
        scenario, count = line.split()
        task, _, mode = scenario.partition("-")
        start = time.process_time()
        for _ in range(int(count)):
            text = await run(f"{task}-task", mode == "streamed")
            if "finished" not in text:
                raise SystemExit(f"unexpected answer: {text!r}")
        sys.stdout.write(f"{time.process_time() - start}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    CONTENDERS = {"bare": bare, "moongate": moongate, "agent-framework": agent_framework, "pydantic-ai": pydantic_ai}
    run_loop(serve(CONTENDERS[sys.argv[1]](sys.argv[2])))
