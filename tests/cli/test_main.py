"""The frame of the command line: help, unknown words, exit codes, one JSON line per failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli.main import COMMANDS
from tests.cli.processes import moongate, write_gateway


def test_help_lists_every_command(tmp_path: Path) -> None:
    done = moongate("--help", cwd=tmp_path)
    assert done.code == 0
    assert [name for name in COMMANDS if f"\n  {name} " not in done.out] == []
    assert moongate(cwd=tmp_path).out == done.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, tmp_path: Path) -> None:
    assert moongate(command, "--help", cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lst"], "Did you mean 'list'?"),
        (["call"], "Missing argument"),
        (["list", "tols"], "'tols' is not one of"),
        (["run", "--stdio", "--http", ":1"], "exclude each other"),
        (["run", "--http", "localhost:99999"], "not HOST:PORT"),
        (["run", "--http", "::1"], "in brackets"),
        (["add", "x"], "Say what to add"),
        (["add", "agent", "https://a.example.com"], "reserved"),
        (["add", "a b", "https://a.example.com"], "letters, digits"),
        (["add", "x", "https://a.example.com", "--header", "nonsense"], "KEY=VALUE"),
        (["add", "x", "https://a.example.com", "--env", "A=b"], "--env belongs to a command"),
        (["call", "x", "--args-json", "{"], "not JSON"),
    ],
)
def test_wrong_usage_exits_with_1_and_names_the_mistake(words: list[str], said: str, tmp_path: Path) -> None:
    write_gateway(tmp_path)
    if words[:2] == ["call", "x"]:
        write_gateway(tmp_path, expose={"skills": [str(Path(__file__).parents[2] / "skills")]})
        words = ["call", "search_skills", *words[2:]]
    done = moongate(*words, cwd=tmp_path)
    assert (done.code, done.out) == (1, "")
    assert said in done.err
    as_json = moongate(*words, "--json", cwd=tmp_path)
    assert (as_json.code, as_json.error["code"]) == (1, "usage")


@pytest.mark.parametrize("command", [["list"], ["inspect", "x"], ["call", "x"], ["run"], ["doctor"], ["keys", "list"]])
def test_broken_configuration_ends_with_2_and_its_place(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "gateway.json").write_text('{\n  "mcpServers": {\n    "a" {}\n  }\n}')
    done = moongate(*command, cwd=tmp_path)
    assert done.code == 2
    assert "gateway.json:3:9" in done.err + done.out
    assert "Traceback" not in done.err


def test_missing_configuration_is_named(tmp_path: Path) -> None:
    done = moongate("list", "--config", "nowhere.json", "--json", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert done.error == {
        "code": "config-invalid",
        "message": "Configuration file 'nowhere.json' (from --config) does not exist.",
        "path": "nowhere.json",
    }


def test_help_needs_no_heavy_library(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom gateway.cli.main import run_command\nrun_command(['--help'])\n"
        "loaded = {'mcp', 'openai', 'uvicorn', 'starlette', 'pydantic', 'rich', 'httpx2'} & set(sys.modules)\n"
        "sys.exit(str(loaded) if loaded - {'pydantic', 'rich'} else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_reader_that_leaves_early_causes_no_noise(tmp_path: Path) -> None:
    script = "import os\nr, w = os.pipe()\nos.close(r)\nos.dup2(w, 1)\nfrom gateway.cli.main import main\nmain(['schema'])"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
