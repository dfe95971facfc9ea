"""Settings of programs: where values come from, how they are read, and secrets that do not show."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import pytest

from gateway.config.settings import SecretString, load_settings
from gateway.errors import SettingNotFoundError


class Settings(TypedDict, total=False):
    api_key: SecretString | None
    model: str | None
    retries: int | None
    ratio: float | None
    verbose: bool | None
    token: str | None


@pytest.mark.requirement("NM1")
def test_setting_comes_from_program_then_file_then_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_MODEL", "from-environment")
    monkeypatch.setenv("APP_RETRIES", "3")
    monkeypatch.setenv("APP_VERBOSE", "Yes")
    (tmp_path / ".env").write_text("export APP_API_KEY='sk-file' # ours\nAPP_RETRIES=5\n")

    settings = load_settings(Settings, env_prefix="APP_", env_file_path=tmp_path / ".env", model="mine", ratio=1, token=None)

    assert settings == {"api_key": "sk-file", "model": "mine", "retries": 5, "ratio": 1, "verbose": True, "token": None}
    assert load_settings(Settings, env_prefix="APP_").get("model") == "from-environment"


@pytest.mark.requirement("NM1")
def test_secret_does_not_show_itself_and_works_as_a_string() -> None:
    settings = load_settings(Settings, api_key="sk-secret")
    key = settings.get("api_key")
    assert isinstance(key, SecretString)
    assert "sk-secret" not in repr(settings)
    assert (key.get_secret_value(), f"Bearer {key}") == ("sk-secret", "Bearer sk-secret")
    assert type(key.get_secret_value()) is str or repr(key.get_secret_value()) == "'sk-secret'"


@pytest.mark.requirement("NM1")
def test_required_settings_and_values_of_another_type_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SettingNotFoundError, match="APP_MODEL"):
        load_settings(Settings, env_prefix="APP_", required_fields=["model"])
    with pytest.raises(SettingNotFoundError, match="none is set"):
        load_settings(Settings, required_fields=[("api_key", "token")])
    with pytest.raises(SettingNotFoundError, match="api_key, token"):
        load_settings(Settings, required_fields=[("api_key", "token")], api_key="a", token="b")
    assert load_settings(Settings, required_fields=["model", ("api_key", "token")], model="m", token="b").get("token") == "b"
    with pytest.raises(ValueError, match="'model' must be str, not dict"):
        load_settings(Settings, model={})
    monkeypatch.setenv("APP_RETRIES", "many")
    with pytest.raises(ValueError, match="APP_RETRIES is 'many'"):
        load_settings(Settings, env_prefix="APP_")
    with pytest.raises(FileNotFoundError):
        load_settings(Settings, env_file_path=tmp_path / "missing")
