"""Only the gateway's user can read its state folder: checks every file after calls of every kind."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from gateway.auth.api_keys import KeyStore
from gateway.storage.state_folder import StateFolder
from gateway.upstream.oauth.tokens import Grant, TokenFile
from tests.fakes.inside import gateway_inside, raw_inside
from tests.fakes.openai_server import openai_server
from tests.interaction.wire import over_http
from tests.skills.on_disk import write_skill

pytestmark = [
    pytest.mark.attack(29),
    pytest.mark.skipif(os.name != "posix", reason="modes are of POSIX"),
]

LARGE = "x" * 50_000
UP: dict[str, Any] = {
    "tools": [{"name": "large", "inputSchema": {"type": "object"}}],
    "results": {"large": {"content": [{"type": "text", "text": LARGE}]}},
}
CLERK = "---\nname: clerk\ndescription: Answers.\nmodel: openai-chat:scripted\n---\nAnswer.\n"
FLOW = "name: flow\ndescription: Asks.\nexecutors:\n  one: {ask: 'Go on?'}\nstart: one\noutput: one\n"
OWN_FOLDERS = ("results", "catalog", "skills", "tokens")


@pytest.fixture
def no_umask() -> Generator[None]:
    """Without a umask, files are private only if the gateway makes them so."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
@pytest.mark.parametrize("was_there", [False, True], ids=["new", "open to all before"])
async def test_state_folder_is_private_after_a_rich_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, was_there: bool) -> None:
    state = tmp_path / "gateway-state"
    if was_there:
        for name in OWN_FOLDERS:
            (state / name).mkdir(parents=True)
        state.chmod(0o700)
    write_skill(tmp_path / "skills" / "pdf")
    (tmp_path / "clerk.agent.md").write_text(CLERK)
    (tmp_path / "flow.workflow.yaml").write_text(FLOW)
    with openai_server() as model, raw_inside(UP) as up:
        monkeypatch.setenv("OPENAI_BASE_URL", model.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        config: dict[str, Any] = {
            "mcpServers": {"up": {"type": "http", "url": up}},
            "policies": {"up": {"maxResultBytes": 1024}},
            "expose": {"agents": ["."], "skills": ["skills"]},
        }
        await model.play({"text": "done"})
        token = KeyStore(state / "keys.json").add("all").token
        with gateway_inside(tmp_path, config) as gateway:
            gateway.look()
            async with over_http(gateway.url, "modern", token=token, tasks=False) as wire:
                called = (await wire.send("tools/call", name="up__large", arguments={}))["result"]
                answered = (await wire.send("tools/call", name="agent__clerk", arguments={"task": "go", "session_id": "new"}))["result"]
                assert "dev.moongate/shortened" in called["_meta"] and "dev.moongate/sessionId" in answered["_meta"]
            async with over_http(gateway.url, "modern", token=token) as wire:
                assert (await wire.send("tools/call", name="workflow__flow", arguments={}))["result"]["taskId"]
            TokenFile(StateFolder(state), "up", up).write(Grant(issuer="https://issuer.example", client_id="me"))
            found = {path: path.stat() for path in (state, *state.rglob("*"))}  # with the database's journal
    folders = {str(path.relative_to(state)): stat.S_IMODE(s.st_mode) for path, s in found.items() if stat.S_ISDIR(s.st_mode)}
    files = {str(path.relative_to(state)): stat.S_IMODE(s.st_mode) for path, s in found.items() if stat.S_ISREG(s.st_mode)}
    assert {name: oct(mode) for name, mode in folders.items() if mode != 0o700} == {}
    assert {name: oct(mode) for name, mode in files.items() if mode != 0o600} == {}
    assert set(OWN_FOLDERS) < set(folders), folders
    assert {"gateway.db", "gateway.db-wal", "keys.json", "installation-key"} <= set(files), files
    for name in OWN_FOLDERS:
        assert any(file.startswith(f"{name}/") for file in files), (name, files)
