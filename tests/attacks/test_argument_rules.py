"""Attack 20, rules for paths and URLs before a server that follows every spelling: the secret beside the folder is never read.

The oracle is the server itself: it answers with the content of each file, and the name of each host, that some reading of an argument
leads to. Allowed files and hosts are reached on every path; the others are reached without the rules and on no path with them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.bypasses import URLS
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.fakes.running import gateway_http, upstream_http, upstream_stdio, write_config
from tests.interaction.wire import Era, Wire, over_http, over_stdio

pytestmark = [pytest.mark.attack(20), pytest.mark.timeout(120)]

ERAS: tuple[Era, ...] = ("legacy", "modern")
SERVERS = ("new", "old", "sdk", "pipe", "sdk_pipe", "open")
GUARDED = SERVERS[:-1]
GUIDE, SECRET = "the guide", "the secret"
DOTS = ("..", "%2e%2e", "%2E.", "%252e%252e", ".. ", "..\t", "\uff0e\uff0e", "\u2024\u2024", "\u2025", ".\u200b.", "\ufeff..")
SLASHES = ("/", "//", "\\", "%2f", "%5c", "%252f", "\uff0f", "\u2215", "\u2044", "\uff3c", "/./")
WITHIN = {"within": "docs/"}
RULES: dict[str, Any] = {
    "tools": {"allow": ["*"]},
    "arguments": {"*": {"path": WITHIN, "paths": WITHIN, "where": WITHIN, "url": {"oneOfHosts": ["api.example.com"]}}},
}
READER = "---\nname: reader\ndescription: Reads.\nmodel: openai-chat:scripted\ntools: ['new/read_*']\n---\nRead.\n"
FLOW = """\
name: flow
description: Reads the named file.
input: {path: {type: string}}
executors:
  read: {tool: new/read_text_file, arguments: {path: "{{path}}"}}
start: read
output: read
"""


def climbs(folder: Path) -> list[str]:
    """Ways to `secret.txt` beside the folder `docs`, as relative, absolute and expanded paths."""
    secret = folder / "secret.txt"
    found = [f"docs/{dots}{slash}secret.txt" for dots, slash in product(DOTS, SLASHES)]
    found += [f"docs{slash}..{slash}secret.txt" for slash in SLASHES]
    found += [f"docs/sub/{dots}/{dots}/secret.txt{end}" for dots in DOTS[:4] for end in (" ", ".", "\0", "\0.md", "%00", "\n")]
    return [*found, "secret.txt", "./secret.txt", str(secret), f"file://{secret}", f"file:{secret}", "~/secret.txt", "./~/secret.txt"]


@dataclass(frozen=True)
class Deployment:
    url: str
    folder: Path
    config: dict[str, Any]
    env: dict[str, str]
    model: ScriptedServer


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Generator[Deployment]:
    folder = tmp_path_factory.mktemp("rules")
    files = folder / "files"
    (files / "docs" / "sub").mkdir(parents=True)
    (files / "docs" / "guide.txt").write_text(GUIDE)
    (files / "secret.txt").write_text(SECRET)
    (folder / "reader.agent.md").write_text(READER)
    (folder / "flow.workflow.yaml").write_text(FLOW)
    with ExitStack() as stack:
        model = stack.enter_context(openai_server())
        module = "tests.fakes.careless_files"
        new, old = (stack.enter_context(upstream_http("--http", *era, str(files), module=module)) for era in (["--modern"], []))
        pipe = upstream_stdio("--modern", str(files), module=module)
        servers = {"new": {"url": new}, "old": {"url": old}, "sdk": {"url": new}, "pipe": pipe, "sdk_pipe": pipe, "open": {"url": new}}
        policies = {name: {**RULES, "directPath": "off" if "sdk" in name else "auto"} for name in GUARDED}
        policies["old"] = {**RULES, "tasks": {"promote": ["read_*"]}}
        config = {"mcpServers": servers, "policies": policies, "expose": {"agents": ["."]}}
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": ""}
        yield Deployment(stack.enter_context(gateway_http(folder, config, env=env)), files, config, env, model)


async def said(wire: Wire, tool: str, **arguments: Any) -> str:
    """Call a tool and return the whole response as text."""
    return json.dumps(await wire.send("tools/call", name=tool, arguments=arguments))


@asynccontextmanager
async def wired(deployment: Deployment, era: Era) -> AsyncGenerator[Wire]:
    async with over_http(deployment.url, era, tasks=False) as wire:
        yield wire


async def test_careless_server_is_led_out_without_a_rule(deployment: Deployment) -> None:
    """Without a rule the server returns the secret. This shows that the tests below depend on the rules."""
    paths = climbs(deployment.folder)[::2]
    async with wired(deployment, "modern") as wire:
        held = [path for path in paths if SECRET not in await said(wire, "open__read_text_file", path=path)]
        hosts = [url for url in URLS if "evil.example" in url and "evil.example" in await said(wire, "open__get", url=url)]
    assert len(held) < len(paths) * 0.2, held
    assert len(hosts) > 15


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("server", GUARDED)
async def test_no_spelling_of_a_path_leads_out(deployment: Deployment, era: Era, server: str) -> None:
    async with wired(deployment, era) as wire:
        for path in ("docs/guide.txt", "./docs//guide.txt"):
            assert GUIDE in await said(wire, f"{server}__read_text_file", path=path)
        assert GUIDE in await said(wire, f"{server}__read_multiple_files", paths=["docs/guide.txt"])
        for path in climbs(deployment.folder):
            answer = await said(wire, f"{server}__read_text_file", path=path)
            assert SECRET not in answer and '"arguments.*.path"' in answer, path


@pytest.mark.parametrize("era", ERAS)
async def test_no_other_type_and_no_sibling_leads_out(deployment: Deployment, era: Era) -> None:
    secret = str(deployment.folder / "secret.txt")
    async with wired(deployment, era) as wire:
        for tool, arguments in [
            ("read_media_file", {"path": secret}),
            ("read_multiple_files", {"paths": ["docs/guide.txt", secret]}),
            ("read_multiple_files", {"paths": [["docs/guide.txt"], [secret]]}),
            ("read_multiple_files", {"paths": secret}),
            *[("read_text_file", {"path": other}) for other in ([secret], {"path": secret}, {secret: secret}, [[secret]])],
            *[("read_any", {"where": other}) for other in (secret, [secret], {"path": secret}, ["docs/guide.txt", {"x": [secret]}])],
        ]:
            answer = await said(wire, f"new__{tool}", **arguments)
            assert SECRET not in answer and '"arguments.*.' in answer, (tool, arguments)
        assert GUIDE in await said(wire, "new__read_any", where="docs/guide.txt")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("server", GUARDED)
async def test_no_spelling_of_a_url_leads_to_another_host(deployment: Deployment, era: Era, server: str) -> None:
    async with wired(deployment, era) as wire:
        assert "api.example.com" in await said(wire, f"{server}__get", url="https://api.example.com/a?b=c")
        for url in URLS:
            assert '"arguments.*.url"' in await said(wire, f"{server}__get", url=url), url


@pytest.mark.parametrize("era", ERAS)
async def test_rules_hold_over_stdio(deployment: Deployment, tmp_path: Path, era: Era) -> None:
    path = write_config(tmp_path, {**deployment.config, "expose": {}}, "pipes")
    async with over_stdio(path, era, tasks=False) as wire:
        with anyio.fail_after(20):
            while GUIDE not in await said(wire, "new__read_text_file", path="docs/guide.txt"):
                await anyio.sleep(0.05)
        for climb in climbs(deployment.folder)[::7]:
            assert SECRET not in await said(wire, "new__read_text_file", path=climb), climb


@pytest.mark.parametrize("era", ERAS)
async def test_rules_hold_for_calls_that_run_as_tasks(deployment: Deployment, era: Era) -> None:
    asked: dict[str, Any] = {"task": {}} if era == "legacy" else {}
    async with over_http(deployment.url, era, tasks=True) as wire:
        for path in ("docs/../secret.txt", "docs/%2e%2e/secret.txt", str(deployment.folder / "secret.txt")):
            answer = await wire.send("tools/call", name="old__read_text_file", arguments={"path": path}, **asked)
            assert answer["result"]["_meta"]["dev.moongate/rule"] == "arguments.*.path", answer
            assert SECRET not in json.dumps(answer)
        made = (await wire.send("tools/call", name="old__read_text_file", arguments={"path": "docs/guide.txt"}, **asked))["result"]
        assert "taskId" in json.dumps(made)


@pytest.mark.parametrize("era", ERAS)
async def test_rules_hold_for_agents_and_workflows(deployment: Deployment, era: Era) -> None:
    secret = str(deployment.folder / "secret.txt")
    for climb in (secret, "docs/../secret.txt", "docs/%2e%2e/secret.txt", "docs\\..\\secret.txt"):
        await deployment.model.play(
            {"when": {"last_role": "user"}, "tool_calls": [{"name": "new__read_text_file", "arguments": {"path": climb}}]},
            {"when": {"last_role": "tool"}, "text": "It said: {last_tool}"},
        )
        async with wired(deployment, era) as wire:
            answer = await said(wire, "agent__reader", task="go")
            assert SECRET not in answer and SECRET not in str(await deployment.model.requests()), climb
            answer = await said(wire, "workflow__flow", path=climb)
            assert SECRET not in answer and "inside 'docs/'" in answer, climb
    async with wired(deployment, era) as wire:
        assert GUIDE in await said(wire, "workflow__flow", path="docs/guide.txt")
