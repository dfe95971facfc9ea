"""A gateway with keys of every kind, and a server, agents and workflows with calls that wait for an approval."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.auth.api_keys import KeyStore
from gateway.config.policies import ApprovalBy
from tests.cli.processes import Ended, moongate
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.fakes.running import gateway_http, raw_stdio, upstream_stdio

ASK_SECONDS = 2.0
"""How long the gateway waits for a decision, unless told otherwise."""

CLERK = """---
name: clerk
description: Wipes.
model: openai-chat:scripted
tools: [disk/wipe]
files: {root: ../data, access: delete}
history: none
---
Wipe.
"""
FLOW = """name: flow
description: Wipes.
input: {}
executors:
  one: {tool: disk/wipe, arguments: {}}
start: one
output: one
"""
CAREFUL = """---
name: careful
description: Reads, then wipes.
model: openai-chat:scripted
tools: [disk/look, up/echo]
security: {sinks: [up/echo], on-violation: ask}
history: none
---
Look, then wipe.
"""
CODED = """name: {0}
description: A graph in code.
python: work:{0}
"""
WORK = '''
from pathlib import Path

from gateway import (
    Agent, AgentExecutor, AgentResponse, AgentSession, Content, Message, ScriptedChatClient, WorkflowBuilder, tool,
)


def note(name):
    with (Path(__file__).parent / "ran.txt").open("a") as file:
        file.write(name + "\\n")
    return name


@tool(approval_mode="always_require")
def sensitive() -> str:
    """Its author wants an approval."""
    return note("sensitive")


def coded():
    """An agent whose tool wants an approval."""
    client = ScriptedChatClient([Content.from_function_call("c1", "sensitive", {}), "done"])
    return WorkflowBuilder(start_executor=AgentExecutor(Agent(client, name="inner", tools=[sensitive]))).build()


class Asking:
    """An agent that is not ours, and asks for approval itself."""

    id = name = "asking"
    description = None

    def create_session(self, *, session_id=None):
        return AgentSession(session_id=session_id)

    async def run(self, messages, *, stream=False, session=None, **kwargs):
        answers = [c for m in messages for c in m.contents if c.type == "function_approval_response"]
        if not answers:
            call = Content.from_function_call("c1", "sensitive", {"text": "t"})
            return AgentResponse([Message("assistant", [Content.from_function_approval_request("a1", call)])])
        return AgentResponse([Message("assistant", [note("asked") if answers[0].approved else "Nobody approved it within: operator"])])


def asking():
    return WorkflowBuilder(start_executor=AgentExecutor(Asking())).build()
'''
KEYS: dict[str, tuple[str, ...] | None] = {
    "weak": None,
    "star": ("*",),
    "other": ("disk",),
    "narrow": ("elsewhere",),
    "boss": ("admin",),
    "chief": ("admin", "*"),
}
ANY: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}


@dataclass
class Deployment:
    folder: Path
    url: str
    keys: dict[str, str]
    model: ScriptedServer

    @property
    def wiped(self) -> int:
        """How many calls of `wipe` reached the server."""
        noted = self.folder / "requests"
        return sum(line.split()[1:] == ["tools/call", "wipe"] for line in noted.read_text().splitlines()) if noted.exists() else 0

    @property
    def ran(self) -> list[str]:
        """The functions of `work.py` that ran."""
        noted = self.folder / "ran.txt"
        return noted.read_text().split() if noted.exists() else []

    def cli(self, *arguments: str) -> Ended:
        return moongate(*arguments, "--json", "--config", str(self.folder / "gateway.json"), cwd=self.folder)

    def rules(self) -> list[dict[str, Any]]:
        return self.cli("approvals", "rules").data["rules"]


@contextmanager
def deployment(folder: Path, by: ApprovalBy | None = None, *, seconds: float = ASK_SECONDS, **more: Any) -> Generator[Deployment]:
    (folder / "own").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "data" / "kept.txt").write_text("kept")
    (folder / "own" / "clerk.agent.md").write_text(CLERK)
    (folder / "own" / "flow.workflow.yaml").write_text(FLOW)
    (folder / "own" / "careful.agent.md").write_text(CAREFUL)
    (folder / "work.py").write_text(WORK)
    for name in ("coded", "asking"):
        (folder / "own" / f"{name}.workflow.yaml").write_text(CODED.format(name))
    store = KeyStore(folder / "gateway-state" / "keys.json")
    keys = {name: store.add(name, scopes=scopes).token for name, scopes in KEYS.items()}
    tools = [{"name": name, "inputSchema": ANY} for name in ("wipe", "look")]
    approval: dict[str, Any] = {"always": ["wipe"], **({"by": by} if by else {})}
    config: dict[str, Any] = {
        "mcpServers": {"disk": raw_stdio({"tools": tools, "folder": str(folder)}), "up": upstream_stdio()},
        "policies": {
            "disk": {"approval": approval, "tasks": {"promote": ["wipe"]}},
            "up": {"approval": {"always": ["ask_name"]}, "sampling": {"mode": "ask"}},
            "agent/clerk": {"approval": {"always": ["file_access_delete_file"], **({"by": by} if by else {})}},
        },
        "expose": {"agents": ["own"]},
        "server": {"askTimeoutSeconds": seconds},
        "tasks": {"askTimeoutSeconds": seconds},
        **more,
    }
    with openai_server() as model:
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": ""}
        with gateway_http(folder, config, env=env) as url:
            yield Deployment(folder, url, keys, model)
