"""Expands `${…}` references in server entries of the configuration, in the secrets of `auth`, and in the gateway's own secrets.

`${VAR}`, `${VAR:-default}` and `${env:VAR}` work in all keys in `FIELDS`; `${file:PATH}`, `${keyring:SERVICE/USER}` and `${cmd:NAME}` in
keys for secrets. `$VAR` without braces stays as it is, references do not nest, and an unset variable without a default is an error.
`references` fetches the values. Used by `load`, `read_entries` and `outbound`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from gateway.config.references import References
from gateway.errors import ConfigError
from gateway.json_types import JsonObject, JsonValue

FIELDS = ("command", "args", "env", "cwd", "url", "headers")
"""Keys of a server entry in which `${…}` references are expanded."""

SECRET_FIELDS = ("env", "headers")
"""Keys of a server entry in which referenced values are secrets. References to files, the keyring and programs work only there."""

MIN_SECRET_CHARS = 6
"""Minimum number of characters of a value that is masked in output.

Masking every `1` or `true` would make the output unreadable and protect nothing.
"""

SENSITIVE_NAME = re.compile(r"auth|cookie|key|passw|secret|token|credential", re.IGNORECASE)
"""Matches the names of environment variables and headers whose values are masked in output."""

_VARIABLE = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_FETCHED = ("file", "keyring", "cmd")
_EDITOR_VARIABLES = frozenset({"workspaceFolder", "workspaceFolderBasename", "userHome", "pathSeparator", "extensionPath"})


_OWN_KEYS = ("OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", "FOUNDRY_API_KEY", "MOONGATE_API_KEY")

MIN_OWN_KEY_CHARS = 16
"""Minimum length of an API key in the gateway's environment that is masked in output.

Shorter keys are often ordinary words, such as `ollama` for a model server that needs no key.
"""


def own_keys(environ: Mapping[str, str]) -> list[str]:
    """Return the API keys in `environ` that the gateway itself uses, to be masked in all output. Keys under 16 characters are left out."""
    return [value for name in _OWN_KEYS if len(value := environ.get(name, "")) >= MIN_OWN_KEY_CHARS]


@dataclass(slots=True)
class Expander:
    """Expands the `${…}` references of one configuration, and collects the secret values that must be masked in output."""

    environ: Mapping[str, str]
    """Environment variables whose values replace references such as `${VAR}`."""
    references: References
    secrets: set[str] = field(default_factory=lambda: cast("set[str]", set()))
    """Secret values to mask in all output. Each reference to a secret adds its value, if it has `MIN_SECRET_CHARS` characters or more."""

    def fetching(self) -> Expander:
        """Return a copy of this expander that fetches secrets from programs and the keyring, even if this expander does not.

        The copy and this expander add to the same set `secrets`.
        """
        return replace(self, references=replace(self.references, fetches=True))

    def entry(self, entry: JsonObject, *, path: str, mistakes: list[ConfigError]) -> JsonObject:
        """Return a copy of a server entry with the references under the keys in `FIELDS` expanded. Other keys stay unchanged.

        `path` is the JSON path of the entry. A value that cannot be expanded stays as it is written, and an error with the JSON path of the
        value is added to `mistakes`.
        """
        return {key: self._value(value, f"{path}.{key}", key, mistakes) if key in FIELDS else value for key, value in entry.items()}

    def secret(self, text: str, *, path: str) -> str:
        """Return the secret `text` with its references expanded, and mask the result in all output. `path` is the JSON path of `text`.

        Raises:
            ConfigError: A reference cannot be expanded; the error names `path`.
        """
        expanded = self._text(text, path, secret=True)
        self._note(expanded)
        return expanded

    def _value(self, value: JsonValue, path: str, field_name: str, mistakes: list[ConfigError]) -> JsonValue:
        if isinstance(value, str):
            try:
                return self._text(value, path, secret=field_name in SECRET_FIELDS)
            except ConfigError as error:
                mistakes.append(error)
                return value
        if isinstance(value, list):
            items = cast("list[JsonValue]", value)
            return [self._value(item, f"{path}[{index}]", field_name, mistakes) for index, item in enumerate(items)]
        if isinstance(value, dict):
            members = cast("JsonObject", value)
            expanded: JsonObject = {}
            for key, item in members.items():
                before = len(mistakes)
                expanded[key] = self._value(item, f"{path}.{key}", field_name, mistakes)
                if field_name in SECRET_FIELDS and len(mistakes) == before:
                    self._note_literal(key, expanded[key])
            return expanded
        return value

    def _note_literal(self, name: str, value: JsonValue) -> None:
        """Mask the value of a variable or header in all output if the name of the variable or header suggests a secret.

        The part of the value after the first space, as in `Bearer TOKEN`, is masked too.
        """
        if isinstance(value, str) and SENSITIVE_NAME.search(name):
            self._note(value)
            self._note(value.partition(" ")[2])

    def _note(self, value: str) -> None:
        if len(value) >= MIN_SECRET_CHARS:
            self.secrets.add(value)

    def _text(self, text: str, path: str, *, secret: bool) -> str:
        parts: list[str] = []
        at = 0
        while (start := text.find("${", at)) >= 0:
            end = text.find("}", start)
            if end < 0:
                raise ConfigError("`${` is never closed by `}`.", path=path)
            body = text[start + 2 : end]
            if "${" in body:
                raise ConfigError("references do not nest; write one `${VAR:-default}` with a plain default.", path=path)
            parts.append(text[at:start])
            parts.append(self._reference(body, path, secret=secret))
            at = end + 1
        return "".join(parts) + text[at:]

    def _reference(self, body: str, path: str, *, secret: bool) -> str:
        match = _VARIABLE.fullmatch(body)
        if match is not None:
            name, default = match.group(1), cast("str | None", match.group(2))
            value = self.environ.get(name)
            if value is None or (value == "" and default is not None):
                if default is None:
                    raise ConfigError(_unset(name), path=path)
                return default
            if secret or SENSITIVE_NAME.search(name):
                self._note(value)
            return value
        scheme, colon, rest = body.partition(":")
        if colon and scheme in _FETCHED:
            if not secret:
                raise ConfigError(f"`${{{scheme}:…}}` is read in `env`, `headers` and `auth` only.", path=path)
            value = self._fetch(scheme, rest, path)
            self._note(value)
            return value
        raise ConfigError(_refused(scheme if colon else "", rest, body), path=path)

    def _fetch(self, scheme: str, rest: str, path: str) -> str:
        if scheme == "file":
            return self.references.file(rest, path)
        return self.references.keyring(rest, path) if scheme == "keyring" else self.references.command(rest, path)


def _unset(name: str) -> str:
    if name in _EDITOR_VARIABLES:
        return f"`${{{name}}}` works in an editor only; write the path, or set {name} in the environment."
    return f"environment variable {name} is not set; set it, or write a default: `${{{name}:-…}}`."


def _refused(scheme: str, rest: str, body: str) -> str:
    if scheme == "input":
        name = re.sub(r"[^A-Za-z0-9]+", "_", rest).strip("_").upper() or "VALUE"
        return f"`${{input:{rest}}}` works in an editor only; set {name} and write `${{{name}}}`."
    if scheme == "env":
        return f"`${{env:…}}` needs the name of an environment variable, not {rest!r}."
    return (
        f"`${{{body}}}` is not a reference; write `${{VAR}}`, `${{VAR:-default}}` or `${{env:VAR}}`, "
        f"or for a secret `${{file:PATH}}`, `${{keyring:SERVICE/USER}}` or `${{cmd:NAME}}`."
    )
