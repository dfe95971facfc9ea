"""`list`, `inspect`, `doctor`, `keys` and `schema`: their output and exit codes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.cli.processes import moongate, write_gateway
from tests.fakes.running import child, free_port, upstream_stdio, wait_until_ready

SKILLS = str(Path(__file__).parents[2] / "skills")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration with a working server, a server that exits, a server with an unset variable, and skills."""
    servers: dict[str, Any] = {
        "up": {**upstream_stdio(), "env": {"SECRET_TOKEN": "${UP_TOKEN:-hunter2-long}"}},
        "dead": {"command": sys.executable, "args": ["-m", "tests.fakes.bad_upstream", "exit"], "cwd": upstream_stdio()["cwd"]},
        "unset": {"url": "https://a.example.com/mcp", "headers": {"X": "${NOT_SET_ANYWHERE}"}},
    }
    http = {"http": {"port": free_port()}}
    write_gateway(tmp_path, mcpServers=servers, expose={"skills": [SKILLS]}, storage={"dir": "state"}, server=http)
    return tmp_path


def test_list_shows_every_source_and_its_problems(folder: Path) -> None:
    sources = {source["name"]: source for source in moongate("list", "--json", cwd=folder).data["sources"]}
    assert {name: source["state"] for name, source in sources.items()} == {
        "up": "ready",
        "dead": "down",
        "unset": "disabled",
        "skill": "ready",
    }
    told = {"name", "kind", "transport", "protocolVersion", "state", "since", "tools", "milliseconds", "error"}
    assert set(sources["up"]) == told | {"failure", "quarantined", "suspicious", "loop", "questions"}
    assert "cannot find my database" in sources["dead"]["error"]
    assert "mcpServers.unset.headers.X" in sources["unset"]["error"]
    servers = moongate("list", "servers", cwd=folder).out.splitlines()
    assert [line.split()[0] for line in servers] == ["NAME", "up", "dead", "unset"]


def test_list_of_each_kind_has_its_stable_key(folder: Path) -> None:
    (folder / "gateway.json").write_text(
        json.dumps({"mcpServers": {"up": upstream_stdio()}, "expose": {"skills": [SKILLS]}, "storage": {"dir": "state"}})
    )
    tools = moongate("list", "tools", "--json", "--standalone", cwd=folder).data["tools"]
    assert {"search_skills": "skill", "up__echo": "up"}.items() <= {tool["name"]: tool["source"] for tool in tools}.items()
    skills = moongate("list", "skills", "--json", cwd=folder).data["skills"]
    assert {"plain-writing", "sql-review"} <= {skill["name"] for skill in skills}
    for kind in ("agents", "workflows", "prompts", "resources"):
        assert isinstance(moongate("list", kind, "--json", "--standalone", cwd=folder).data[kind], list)
    assert moongate("list", "tools", "--standalone", cwd=folder).out.splitlines()[0].split() == ["NAME", "SOURCE", "DESCRIPTION"]


def test_list_shows_the_context_size_of_tools(folder: Path) -> None:
    whole = moongate("list", "tools", "--tokens", "--json", "--standalone", cwd=folder).data
    tools = whole["tools"]
    wires = {tool["name"]: tool for tool in moongate("list", "tools", "--json", "--standalone", cwd=folder).data["tools"]}
    shown = {name: {key: wire[key] for key in ("name", "description", "inputSchema")} for name, wire in wires.items()}
    expected = {name: -(-len(json.dumps(wire, ensure_ascii=False, separators=(",", ":"))) // 4) for name, wire in shown.items()}
    assert {tool["name"]: tool["tokens"] for tool in tools} == expected
    assert [tool["tokens"] for tool in tools] == sorted(expected.values(), reverse=True)
    assert whole["total"] == sum(expected.values())
    sources = moongate("list", "sources", "--tokens", "--json", "--standalone", cwd=folder).data
    assert sources["total"] == whole["total"]
    assert moongate("list", "servers", "--tokens", "--standalone", cwd=folder).out.splitlines()[0].split() == ["NAME", "TOOLS", "TOKENS"]
    assert moongate("list", "prompts", "--tokens", cwd=folder).code == 1


def test_list_asks_the_running_gateway(folder: Path) -> None:
    config = folder / "gateway.json"
    port = json.loads(config.read_text())["server"]["http"]["port"]
    log = folder / "log"
    with child("-m", "gateway", "run", "--config", str(config), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        listed = moongate("list", "tools", "--json", cwd=folder).data["tools"]
        assert {"name": "up__add", "source": "up"}.items() <= next(tool for tool in listed if tool["name"] == "up__add").items()
        assert moongate("inspect", "up", "--json", cwd=folder).data["state"] == "ready"
        assert moongate("keys", "add", "me", cwd=folder).code == 0
        assert moongate("list", cwd=folder).code == 3


def test_inspect_shows_a_published_tool_and_a_server_without_secrets(folder: Path) -> None:
    tool = moongate("inspect", "up__add", "--json", cwd=folder).data
    assert (tool["kind"], tool["source"], tool["definition"]["inputSchema"]["required"]) == ("tool", "up", ["a", "b"])
    server = moongate("inspect", "up", cwd=folder, env={"UP_TOKEN": "another-secret"})
    assert server.code == 0
    assert "another-secret" not in server.out + server.err
    assert '"SECRET_TOKEN": "[secret]"' in server.out
    assert moongate("inspect", "up+data://report", "--json", cwd=folder).data["kind"] == "resource"
    assert moongate("inspect", "nothing-like-it", cwd=folder).code == 1


def test_doctor_names_every_fault_with_its_fix(folder: Path) -> None:
    done = moongate("doctor", "--json", cwd=folder)
    checks = {check["subject"]: check for check in done.data["checks"]}
    assert checks["server up"]["status"] == "ok"
    assert re.search(r"2026-07-28, \d+ tools", checks["server up"]["text"])
    assert (checks["server dead"]["status"], "mcpServers.dead" in checks["server dead"]["fix"]) == ("fail", True)
    assert checks["entry mcpServers.unset.headers.X"]["status"] == "fail"
    assert (done.code, done.error["code"]) == (2, "config-invalid")
    assert checks["names"]["status"] == "ok"


def test_doctor_distinguishes_missing_programs_and_silent_servers(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/mcp"
    write_gateway(tmp_path, mcpServers={"gone": {"url": url}}, storage={"dir": "state"}, server={"http": {"port": free_port()}})
    assert moongate("doctor", cwd=tmp_path).code == 4
    write_gateway(tmp_path, mcpServers={"gone": {"command": "no-such-program-here"}}, storage={"dir": "state"})
    missing = moongate("doctor", cwd=tmp_path)
    assert missing.code == 2
    assert "fail  program no-such-program-here: not found" in missing.out


@pytest.mark.requirement(26)
def test_doctor_warns_about_rules_for_tools_that_do_not_exist(tmp_path: Path) -> None:
    extra = {"nothing": ["x"], "add": ["y"]}
    rules: dict[str, Any] = {"arguments": {"ech": {"text": {"type": "string"}}, "*": {}}, "additionalArguments": extra}
    policies: dict[str, Any] = {"up": {**rules, "tools": {"allow": ["*", "zz_*"]}}, "dead": {"arguments": {"x": {}}}}
    servers = {"up": upstream_stdio(), "dead": {"url": f"http://127.0.0.1:{free_port()}/mcp", "disabled": True}}
    write_gateway(tmp_path, mcpServers=servers, policies=policies, storage={"dir": "state"})
    done = moongate("doctor", "--json", cwd=tmp_path)
    check = done.data["checks"]
    remarks = [" ".join(str(value) for value in c.values()) for c in check if c["subject"] == "rule"]
    places = ("policies.up.arguments.ech", "policies.up.additionalArguments.nothing", "policies.up.tools.allow[1]")
    assert sorted(place for place in places if any(place in remark for remark in remarks)) == sorted(places)
    assert len(remarks) == len(places)
    assert done.code == 0


def test_doctor_is_content_with_a_sound_configuration(tmp_path: Path) -> None:
    write_gateway(tmp_path, mcpServers={"up": upstream_stdio()}, expose={"skills": [SKILLS]}, storage={"dir": "state"})
    done = moongate("doctor", cwd=tmp_path)
    assert (done.code, "fail" in done.out) == (0, False), done.out


def test_keys_are_shown_once_listed_without_secrets_and_revoked(tmp_path: Path) -> None:
    write_gateway(tmp_path, storage={"dir": "state"})
    first = moongate("keys", "add", "laptop", "--json", cwd=tmp_path)
    assert "every client over HTTP needs a key from now on" in first.err
    made = first.data
    listed = moongate("keys", "list", "--json", cwd=tmp_path)
    assert [(key["id"], key["name"], key["expires"]) for key in listed.data["keys"]] == [(made["id"], "laptop", None)]
    assert made["key"] not in listed.out
    by_name = moongate("keys", "revoke", "laptop", "--json", cwd=tmp_path)
    assert (by_name.code, made["id"] in by_name.error["message"]) == (1, True)
    revoked = moongate("keys", "revoke", made["id"], "--json", cwd=tmp_path)
    assert (revoked.data, "No key is left" in revoked.err) == ({"revoked": made["id"], "name": "laptop"}, True)
    assert moongate("keys", "list", "--json", cwd=tmp_path).data == {"keys": []}
    assert moongate("keys", "add", " ", cwd=tmp_path).code == 1


def test_schema_prints_what_editors_need(tmp_path: Path) -> None:
    schema = json.loads(moongate("schema", cwd=tmp_path).out)
    assert jsonschema_rs.validator_for(schema).is_valid({"mcpServers": {"a": {"command": "x"}}})
    assert moongate("schema", "--json", cwd=tmp_path).data == schema
    workflow = json.loads(moongate("schema", "workflow", cwd=tmp_path).out)
    assert "executors" in workflow["properties"]
