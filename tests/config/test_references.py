"""Secret references: their allowed places, their values, and that a value is never printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.config.expand import own_keys
from gateway.config.load import LoadedConfig, load_config
from gateway.errors import ConfigError

SECRET = "canary-5f2c-secret"


def load(folder: Path, document: dict[str, Any], environ: dict[str, str] | None = None) -> LoadedConfig:
    file = folder / "gateway.json"
    file.write_text(json.dumps(document))
    return load_config(file, {**os.environ, **(environ or {})})


def with_program(body: str, **settings: Any) -> dict[str, Any]:
    """A configuration whose one server takes a header from a Python program."""
    return {
        "mcpServers": {"docs": {"url": "https://docs.example.com/mcp", "headers": {"X-Token": "${cmd:docs}"}}},
        "secrets": {"docs": {"command": [sys.executable, "-c", body], **settings}},
    }


def reason(loaded: LoadedConfig) -> str:
    (only,) = loaded.disabled
    return f"{only.json_path}: {only.reason}"


def test_program_output_loses_its_last_line_break(tmp_path: Path) -> None:
    loaded = load(tmp_path, with_program(f"print({SECRET!r})"))
    assert loaded.config.mcp_servers["docs"].model_dump()["headers"] == {"X-Token": SECRET}
    assert loaded.secrets == {SECRET}


def test_program_runs_once_per_load_and_not_for_a_disabled_server(tmp_path: Path) -> None:
    body = "import pathlib; p = pathlib.Path('runs'); p.write_text((p.read_text() if p.exists() else '') + 'x'); print('value-of-it')"
    document = with_program(body)
    document["mcpServers"]["docs"]["headers"]["X-Other"] = "Bearer ${cmd:docs}"
    document["mcpServers"]["tool"] = {"command": "x", "env": {"A": "${cmd:docs}"}}
    loaded = load(tmp_path, document)
    assert loaded.config.mcp_servers["tool"].model_dump()["env"] == {"A": "value-of-it"}
    assert (tmp_path / "runs").read_text() == "x"
    for entry in document["mcpServers"].values():
        entry["disabled"] = True
    load(tmp_path, document)
    assert (tmp_path / "runs").read_text() == "x"


def test_program_gets_no_shell(tmp_path: Path) -> None:
    document = with_program("import sys; print(sys.argv[1])")
    document["secrets"]["docs"]["command"].append("$(touch made); `touch made` ; echo $HOME")
    loaded = load(tmp_path, document)
    assert loaded.config.mcp_servers["docs"].model_dump()["headers"] == {"X-Token": "$(touch made); `touch made` ; echo $HOME"}
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (f"import sys; print({SECRET!r}); print({SECRET!r}, file=sys.stderr); sys.exit(3)", "failed with exit code 3"),
        ("pass", "printed nothing"),
        (f"print({SECRET!r} * 10_000)", "is larger than 65536 bytes"),
        (f"while True: print({SECRET!r} * 10_000)", "is larger than 65536 bytes"),
        ("import sys; sys.stdout.buffer.write(b'canary-5f2c-secret\\xff')", "is not UTF-8 text"),
    ],
)
def test_failing_program_disables_its_server_and_output_is_hidden(
    body: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    loaded = load(tmp_path, with_program(body))
    assert said in reason(loaded)
    assert reason(loaded).startswith("mcpServers.docs.headers.X-Token: ")
    assert SECRET not in reason(loaded) + "".join(capfd.readouterr())


def test_program_that_hangs_is_ended_with_everything_it_started(tmp_path: Path) -> None:
    body = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open('child', 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )
    began = time.monotonic()
    loaded = load(tmp_path, with_program(body, timeoutSeconds=2))
    assert "did not end within 2 s" in reason(loaded)
    assert time.monotonic() - began < 15
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_unknown_program_and_misplaced_reference_name_the_fix(tmp_path: Path) -> None:
    document = with_program("pass")
    document["mcpServers"] = {
        "a": {"url": "https://a.example.com", "headers": {"X": "${cmd:dosc}"}},
        "b": {"url": "https://b.example.com/${cmd:docs}"},
        "c": {"command": "x", "args": ["${keyring:a/b}"]},
    }
    said = {d.name: d.reason for d in load(tmp_path, document).disabled}
    assert said["a"] == "`${cmd:dosc}` names no program under `secrets`. Did you mean 'docs'?"
    assert said["b"] == "`${cmd:…}` is read in `env`, `headers` and `auth` only."
    assert said["c"] == "`${keyring:…}` is read in `env`, `headers` and `auth` only."


def test_the_keyring_gives_a_password_and_a_missing_one_is_named(tmp_path: Path) -> None:
    """In a process of its own: `keyring` chooses its backend once."""
    (tmp_path / "keyring.json").write_text(json.dumps({"https://docs.example.com": {"me@example.com": SECRET}}))
    servers = {
        "docs": {"url": "https://a.example.com", "headers": {"X": "${keyring:https://docs.example.com/me@example.com}"}},
        "none": {"url": "https://a.example.com", "headers": {"X": "${keyring:docs/me}"}},
    }
    (tmp_path / "gateway.json").write_text(json.dumps({"mcpServers": servers}))
    code = (
        "import os; from gateway.config.load import load_config; c = load_config('gateway.json', os.environ);"
        "print(c.config.mcp_servers['docs'].headers['X'], sorted(c.secrets), c.disabled[0].reason)"
    )
    environ = {
        **os.environ,
        "PYTHON_KEYRING_BACKEND": "tests.fakes.keyring_file.FileKeyring",
        "MOONGATE_TEST_KEYRING": str(tmp_path / "keyring.json"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=20, check=True)
    fix = "the keyring has no password for 'me' of 'docs'; set it: `keyring set docs me`."
    assert run.stdout == f"{SECRET} ['{SECRET}'] {fix}\n"


def test_without_the_extra_the_keyring_reference_names_it(tmp_path: Path) -> None:
    (tmp_path / "keyring").mkdir()
    (tmp_path / "keyring" / "__init__.py").write_text("raise ImportError('not installed')\n")
    (tmp_path / "gateway.json").write_text('{"mcpServers": {"a": {"command": "x", "env": {"A": "${keyring:a/b}"}}}}')
    code = "from gateway.config.load import load_config; print(load_config('gateway.json', {}).disabled[0].reason)"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=20, check=True)
    assert run.stdout == "`${keyring:…}` needs the extra `keyring`: install `moongate[keyring]`.\n"


def auth_config(auth: dict[str, Any], entry: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"mcpServers": {"docs": entry or {"url": "https://docs.example.com/mcp"}}, "policies": {"docs": {"auth": auth}}}


def credentials(**more: Any) -> dict[str, Any]:
    written = {"type": "client-credentials", "issuer": "https://id.example.com", "clientId": "me", "clientSecret": "${file:secret}"}
    return {**written, **more}


def test_the_secret_of_auth_is_expanded_and_masked(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    loaded = load(tmp_path, auth_config(credentials()))
    auth = loaded.config.policies["docs"].auth
    assert auth is not None
    assert auth.client_secret == SECRET
    assert loaded.secrets == {SECRET}
    assert loaded.notes == []


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (auth_config(credentials()), "policies.docs.auth.clientSecret: file 'secret' cannot be read: No such file or directory."),
        (
            auth_config(credentials(clientId="${ID}")),
            "policies.docs.auth.clientId: `${…}` is read in `clientSecret` only; write the value itself.",
        ),
        (
            auth_config(credentials(issuer="http://id.example.com")),
            "policies.docs.auth.issuer: is not an https:// address; http:// is allowed for this machine only.",
        ),
        (
            auth_config(credentials(), {"command": "x"}),
            "policies.docs.auth: OAuth is for servers with a `url`; give a program its credentials in `env`.",
        ),
        (
            auth_config(credentials(), {"url": "https://docs.example.com/mcp", "headers": {"authorization": "Bearer x"}}),
            "policies.docs.auth: the entry has an `Authorization` header already; keep one of the two.",
        ),
    ],
)
def test_mistake_in_auth_disables_the_one_server(document: dict[str, Any], said: str, tmp_path: Path) -> None:
    document["mcpServers"]["other"] = {"command": "x"}
    loaded = load(tmp_path, document)
    assert reason(loaded) == said
    assert list(loaded.config.mcp_servers) == ["other"]


def test_secret_written_out_in_auth_works_is_masked_and_remarked(tmp_path: Path) -> None:
    loaded = load(tmp_path, auth_config(credentials(clientSecret=SECRET)))
    assert loaded.secrets == {SECRET}
    assert loaded.notes == [
        "policies.docs.auth.clientSecret: a secret stands in the file; write a reference such as `${VAR}` or `${file:PATH}`"
    ]


def test_secret_variable_is_masked_in_arguments_and_addresses_too(tmp_path: Path) -> None:
    servers = {"a": {"url": "https://a.example.com/?key=${A_KEY}&p=${PROJECT}"}, "b": {"command": "x", "args": ["--token=${B_TOKEN}"]}}
    loaded = load(tmp_path, {"mcpServers": servers}, {"A_KEY": "value-of-a", "B_TOKEN": "value-of-b", "PROJECT": "the-project"})
    assert loaded.secrets == {"value-of-a", "value-of-b"}


def test_references_are_refused_in_the_programs_themselves(tmp_path: Path) -> None:
    from gateway.errors import ConfigError

    with pytest.raises(ConfigError, match=r"secrets\.docs\.command\[0\]: `\$\{…\}` is read inside server entries only"):
        load(tmp_path, {"secrets": {"docs": {"command": ["${HOME}/x"]}}})


def test_database_password_is_a_reference_and_never_shown(tmp_path: Path) -> None:
    document = {"storage": {"url": "postgresql://ada:${DB_PASSWORD}@db.example.com/moongate"}}
    loaded = load(tmp_path, document, {"DB_PASSWORD": SECRET})
    assert loaded.config.storage.url == f"postgresql://ada:{SECRET}@db.example.com/moongate"
    assert SECRET in loaded.secrets
    with pytest.raises(ConfigError, match="DB_PASSWORD"):
        load(tmp_path, document)


def test_temporal_key_is_a_reference_and_never_shown(tmp_path: Path) -> None:
    document = {"tasks": {"engine": "temporal", "temporal": {"apiKey": "${env:TEMPORAL_KEY}", "tls": {"ca": "ca.pem"}}}}
    temporal = (loaded := load(tmp_path, document, {"TEMPORAL_KEY": SECRET})).config.tasks.temporal
    assert temporal.api_key == SECRET
    assert SECRET in loaded.secrets
    assert temporal.tls is not None
    assert temporal.tls.ca == str(tmp_path / "ca.pem")
    with pytest.raises(ConfigError, match="TEMPORAL_KEY"):
        load(tmp_path, document)


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({"temporal": {"address": "https://temporal.example.com"}}, r"tasks\.temporal\.address: "),
        ({"temporal": {"ui": "temporal.example.com"}}, r"tasks\.temporal\.ui: "),
        ({"temporal": {"tls": {"cert": "a.pem"}}}, "`cert` and `key` belong together; write both or neither"),
        ({"engine": "celery"}, r"tasks\.engine: .*temporal"),
        ({"engine": "temporal"}, r"tasks\.temporal\.taskQueue: missing, but `storage\.url` is set"),
    ],
)
def test_wrong_temporal_settings_are_named(section: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        load(tmp_path, {"storage": {"url": "postgresql://db.example.com/moongate"}, "tasks": section})


def test_keys_of_object_storage_are_references_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    s3 = {"endpoint": "http://minio.example.com", "accessKey": "${S3_KEY}", "secretKey": "${file:secret}", "sessionToken": "written-here"}
    loaded = load(tmp_path, {"storage": {"results": "s3://kept/results", "s3": s3}}, {"S3_KEY": "access-key"})
    found = loaded.config.storage.s3
    assert (found.access_key, found.secret_key, found.session_token) == ("access-key", SECRET, "written-here")
    assert loaded.secrets == {"access-key", SECRET, "written-here"}
    assert [note.partition(":")[0] for note in loaded.notes] == ["storage.s3.sessionToken", "storage.s3.endpoint"]


@pytest.mark.parametrize(
    ("storage", "place"),
    [
        ({"results": "s3://kept/../other"}, "storage.results"),
        ({"results": "s3://kept//x"}, "storage.results"),
        ({"results": "https://kept/x"}, "storage.results"),
        ({"results": "s3://UPPER"}, "storage.results"),
        ({"results": "s3://kept", "s3": {"endpoint": "https://user:password@host"}}, "storage.s3.endpoint"),
        ({"results": "s3://kept", "s3": {"endpoint": "https://host/kept"}}, "storage.s3.endpoint"),
        ({"results": "s3://kept", "s3": {"accessKey": "a"}}, "accessKey and secretKey belong together"),
        ({"s3": {"region": "eu-west-1"}}, "s3 has no effect without `results`"),
    ],
)
def test_wrong_place_of_object_storage_is_named(tmp_path: Path, storage: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError, match=place):
        load(tmp_path, {"storage": storage})


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", "FOUNDRY_API_KEY", "MOONGATE_API_KEY"])
def test_gateway_keys_are_masked_unless_they_are_ordinary_terms(name: str) -> None:
    assert own_keys({name: "k" * 16, "OTHER": "v" * 16}) == ["k" * 16]
    assert own_keys({name: "ollama"}) == []
