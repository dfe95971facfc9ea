"""`add` and `remove` edit the user's file in place and touch nothing else in it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config.jsonc import parse
from tests.cli.processes import environment, moongate
from tests.fakes.running import ROOT

COMMENTED = """{
  // my servers
  "mcpServers": {
    "docs": {"url": "https://docs.example.com/mcp"}, // the docs
  },
}
"""


def test_add_creates_a_missing_file(tmp_path: Path) -> None:
    done = moongate("add", "files", "--env", "MODE=ro", "--", "npx", "-y", "server-files", "--flag", ".", cwd=tmp_path)
    assert done.code == 0
    document = json.loads((tmp_path / "gateway.json").read_text())
    assert document["mcpServers"] == {"files": {"command": "npx", "args": ["-y", "server-files", "--flag", "."], "env": {"MODE": "ro"}}}


def test_add_keeps_comments_and_remove_restores_the_text(tmp_path: Path) -> None:
    file = tmp_path / "gateway.json"
    file.write_text(COMMENTED)
    header = "Authorization=Bearer ${API_TOKEN:-none}"
    added = moongate("add", "api", "https://api.example.com/mcp", "--header", header, "--json", cwd=tmp_path)
    entry = {"type": "http", "url": "https://api.example.com/mcp", "headers": {"Authorization": "Bearer ${API_TOKEN:-none}"}}
    assert added.data == {"added": "api", "file": str(file), "entry": entry, "problem": None}
    assert parse(file.read_text())["mcpServers"]["api"] == entry
    assert "// my servers" in file.read_text() and "// the docs" in file.read_text()
    removed = moongate("remove", "api", "--json", cwd=tmp_path)
    assert removed.data == {"removed": "api", "file": str(file)}
    assert file.read_text() == COMMENTED


def test_add_to_a_file_of_vs_code_uses_its_own_key(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"servers": {}}')
    assert moongate("add", "a", "https://a.example.com", "--sse", "--config", "mcp.json", cwd=tmp_path).code == 0
    assert json.loads(file.read_text()) == {"servers": {"a": {"type": "sse", "url": "https://a.example.com"}}}


def test_existing_name_needs_replace(tmp_path: Path) -> None:
    file = tmp_path / "gateway.json"
    file.write_text(COMMENTED)
    refused = moongate("add", "docs", "--json", "--", "docs-server", cwd=tmp_path)
    assert (refused.code, refused.error["code"]) == (2, "config-invalid")
    assert "--replace" in refused.error["message"]
    assert file.read_text() == COMMENTED
    assert moongate("add", "docs", "--replace", "--", "docs-server", cwd=tmp_path).code == 0
    assert file.read_text() == COMMENTED.replace('{"url": "https://docs.example.com/mcp"}', '{"command": "docs-server"}')


def test_add_warns_of_an_unset_variable_and_a_literal_secret(tmp_path: Path) -> None:
    unset = moongate("add", "a", "https://a.example.com", "--header", "X-Key=${NOT_SET_ANYWHERE}", cwd=tmp_path)
    assert (unset.code, "NOT_SET_ANYWHERE is not set" in unset.err) == (0, True)
    literal = moongate("add", "b", "https://a.example.com", "--header", "Authorization: Bearer abc", cwd=tmp_path)
    assert "Authorization is written out in the file" in literal.err


def test_file_that_cannot_be_edited_stays_and_the_entry_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "gateway.json"
    file.write_text('{"mcpServers": []}')
    done = moongate("add", "a", "https://a.example.com", cwd=tmp_path)
    assert done.code == 2
    assert file.read_text() == '{"mcpServers": []}'
    assert '"url": "https://a.example.com"' in done.err


@pytest.mark.parametrize(
    "target", ["ftp://files.example.com/mcp", "ftp:/files", "https:///mcp", "ws://a.example.com", "http://a.example:99999/mcp", "http://[::1/mcp"]
)
def test_add_refuses_urls_that_are_not_http(tmp_path: Path, target: str) -> None:
    done = moongate("add", "x", target, "--json", cwd=tmp_path)
    assert (done.code, done.error["code"]) == (1, "usage")
    assert target in done.error["message"]
    assert not (tmp_path / "gateway.json").exists()
    assert moongate("add", "x", "http://127.0.0.1:${PORT_OF_X}/mcp", cwd=tmp_path).code == 0


def test_add_remarks_on_an_address_without_a_scheme(tmp_path: Path) -> None:
    done = moongate("add", "docs", "docs.example.com/mcp", cwd=tmp_path)
    assert (done.code, "Program 'docs.example.com/mcp' was not found" in done.err) == (0, True)
    assert "was not found" not in moongate("add", "shell", "--", "sh", "-c", "true", cwd=tmp_path).err


def test_add_in_a_clone_leaves_the_bundled_file(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    for folder in ("gateway", "config"):
        shutil.copytree(ROOT / folder, clone / folder, ignore=shutil.ignore_patterns("__pycache__"))
    bundled = (clone / "config" / "gateway.json").read_bytes()

    def add(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        env = {**environment(tmp_path), "PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": "1"}
        argv = [sys.executable, "-m", "gateway", "add", "docs", *words, "https://docs.example.com/mcp"]
        return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=40, check=False)

    written = add(cwd=clone)
    assert (written.returncode, written.stdout) == (0, f"added docs to {clone / 'gateway.json'}\n")
    assert "This file is new" in written.stderr
    assert "docs" in json.loads((clone / "gateway.json").read_text())["mcpServers"]
    refused = [add(cwd=clone / "config"), add("--config", "config/gateway.json", cwd=clone)]
    assert [done.returncode for done in refused] == [2, 2]
    assert all("ships with Moongate and is not edited" in done.stderr for done in refused)
    assert (clone / "config" / "gateway.json").read_bytes() == bundled


def test_lock_writes_nothing_beside_the_bundled_file(tmp_path: Path) -> None:
    done = moongate("lock", "--json", cwd=tmp_path)
    assert (done.code, "ships with Moongate, so no lock file is written" in done.error["message"]) == (2, True)
    assert not (ROOT / "config" / "gateway.lock.json").exists()


def test_removing_an_unknown_server_suggests_the_closest(tmp_path: Path) -> None:
    (tmp_path / "gateway.json").write_text(COMMENTED)
    done = moongate("remove", "dcos", "--json", cwd=tmp_path)
    assert (done.code, done.error["kind"]) == (1, "server")
    assert "Did you mean 'docs'?" in done.error["message"]
    nothing = moongate("remove", "docs", cwd=(tmp_path / "empty").resolve() if (tmp_path / "empty").mkdir() is None else tmp_path)
    assert (nothing.code, "no configuration file of your own" in nothing.err) == (1, True)
