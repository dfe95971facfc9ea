"""`storage.installationKey`: a referenced secret of 32 random bytes or more, which no error and no output shows."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from gateway.config.load import LoadedConfig, load_config
from gateway.errors import ConfigError
from gateway.storage.state_folder import StateFolder

KEY = bytes(range(7, 256, 8))  # fixed, because test processes must collect the same parameters


def loaded(folder: Path, written: str, **environ: str) -> LoadedConfig:
    path = folder / "gateway.json"
    path.write_text(json.dumps({"storage": {"dir": "state", "installationKey": written}}))
    return load_config(path, environ)


@pytest.mark.parametrize(
    "text",
    [
        KEY.hex(),
        KEY.hex().upper(),
        base64.b64encode(KEY).decode(),
        base64.urlsafe_b64encode(KEY).decode().rstrip("="),
        f" {base64.encodebytes(KEY).decode()}\n",
    ],
)
@pytest.mark.parametrize("reference", ["${env:ROOT_KEY}", "${file:root.key}"])
def test_key_is_read_by_reference_in_each_notation(tmp_path: Path, text: str, reference: str) -> None:
    (tmp_path / "root.key").write_text(text)
    found = loaded(tmp_path, reference, ROOT_KEY=text)
    assert found.config.storage.root_key == KEY
    assert (found.problems, found.notes) == ([], [])
    assert found.secrets, "so that output masks it"
    assert text.strip() not in repr(found.config.storage)


def test_configured_key_gives_the_keys_of_the_file_that_it_replaces(tmp_path: Path) -> None:
    file = StateFolder(tmp_path / "first")
    before = file.key("audit")
    text = base64.b64encode((tmp_path / "first" / "installation-key").read_bytes()).decode()
    storage = loaded(tmp_path, "${env:ROOT_KEY}", ROOT_KEY=text).config.storage
    folder = StateFolder(tmp_path / "second", storage.root_key)
    assert folder.key("audit") == before
    assert not (tmp_path / "second").exists()
    assert text not in repr(folder)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has 0 bytes"),
        ("correct horse battery staple!", "is not base64 or hex"),
        (KEY[:31].hex(), "has 31 bytes"),
        (base64.b64encode(KEY[:16]).decode(), "has 16 bytes"),
        ("0" * 64, "is not random"),
        ("QUFB" * 20, "is not random"),
    ],
)
def test_unusable_key_is_an_error_that_does_not_contain_it(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        loaded(tmp_path, "${env:ROOT_KEY}", ROOT_KEY=text)
    assert refused.value.path == "storage.installationKey"
    assert "openssl rand -base64 32" in str(refused.value)
    assert not text or text not in str(refused.value)


def test_unset_reference_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ROOT_KEY is not set") as refused:
        loaded(tmp_path, "${env:ROOT_KEY}")
    assert refused.value.path == "storage.installationKey"


def test_key_in_the_file_itself_is_remarked_on(tmp_path: Path) -> None:
    found = loaded(tmp_path, KEY.hex())
    assert found.config.storage.root_key == KEY
    [note] = found.notes
    assert "storage.installationKey: a secret stands in the file" in note and KEY.hex() not in note
