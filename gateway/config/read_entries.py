"""Turns one server entry of `gateway.json` into a validated model, or into the reason why the server is disabled.

Each entry is validated separately, so that a mistake disables only its server. Used by `load`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast
from urllib.parse import urlsplit

from pydantic import ValidationError

from gateway.config.expand import Expander
from gateway.config.hosts import HEADER_VARIABLES, IGNORED_KEYS, KEY_ALIASES, TOOL_FILTERS, TYPE_ALIASES
from gateway.config.models import HttpServer, ServerEntry, SseServer, StdioServer, Transport
from gateway.config.problems import problems_of
from gateway.config.references import NotAccepted
from gateway.config.suggest import closest, did_you_mean
from gateway.errors import ConfigError
from gateway.json_types import JsonObject, JsonValue

_MODELS: dict[str, type[ServerEntry]] = {
    "stdio": StdioServer,
    "http": HttpServer,
    "sse": SseServer,
}

SWITCHED_OFF = "switched off in the configuration"
"""Reason of a disabled server whose entry has `disabled: true` or `enabled: false`."""


@dataclass(frozen=True, slots=True)
class DisabledServer:
    """A server that is not started because its entry in the configuration is switched off, invalid, or not yet accepted by a person."""

    name: str
    json_path: str
    """Place of the first mistake in the file, for example `mcpServers.docs.env.TOKEN`."""
    reason: str
    """All mistakes, with corrections, on one line. The place of the first mistake is not repeated."""
    transport: Transport = "stdio"
    """The transport that the entry, which may be invalid, seems to describe."""
    waits_for: str = ""
    """The key for `moongate lock --accept` if a person must accept the entry before it runs; else empty."""


@dataclass(slots=True)
class EntryResult:
    """The result of reading one server entry: either `server` (the model) or `disabled` (the reason) is set. `notes` are for the user."""

    server: ServerEntry | None = None
    disabled: DisabledServer | None = None
    notes: list[str] = field(default_factory=lambda: cast("list[str]", []))
    filters: dict[Literal["allow", "deny"], list[str]] = field(
        default_factory=lambda: cast("dict[Literal['allow', 'deny'], list[str]]", {})
    )
    """Names of tools that the entry allows or denies under a key of another MCP host (`hosts.TOOL_FILTERS`)."""


def read_entry(name: str, raw: JsonValue, expander: Expander, *, path: str) -> EntryResult:
    """Turn the entry `raw` of the server `name` into a validated model, with references expanded and with an absolute `cwd`.

    `path` is the entry's JSON path in the file. A mistake in the entry raises no exception: the result's `disabled` contains the reason.
    """
    result = EntryResult()
    try:
        if not isinstance(raw, dict):
            raise ConfigError("a server entry is an object with `command` or `url`.", path=path)
        entry = _take_host_keys(name, cast("JsonObject", raw), path, result)
        if entry.get("disabled") is True:
            result.disabled = DisabledServer(name, f"{path}.disabled", SWITCHED_OFF, _looks_like(raw))
            return result
        kind = _misspelled_kind(entry) or _kind(entry, path)
        known = {key: value for key, value in entry.items() if key in _MODELS[kind].model_fields}
        unexpanded: list[ConfigError] = []
        expanded = expander.entry(_plain_env(known), path=path, mistakes=unexpanded)
        mistakes = [*_unknown(name, entry, kind, path), *(error for error in unexpanded if not isinstance(error, NotAccepted))]
        server = _shaped(expanded, kind, path, mistakes)
        if server is not None and not unexpanded:
            is_program = isinstance(server, StdioServer)
            mistakes += _unusable_stdio(server, path, expander.references.base_dir) if is_program else _unusable_http(server, path)
        if mistakes:
            raise _joined(mistakes, path)
        if unexpanded:
            raise unexpanded[0]
        result.server = _in_folder(server, expander.references.base_dir)
    except ConfigError as error:
        waits_for = error.key if isinstance(error, NotAccepted) else ""
        result.disabled = DisabledServer(name, error.path or path, str(error), _looks_like(raw), waits_for)
    return result


def _joined(mistakes: Sequence[ConfigError], path: str) -> ConfigError:
    """Combine all mistakes of a server entry into one error, with the JSON path of the first mistake.

    The text of the error is the text of the first mistake, followed by `; key: text` for each other mistake. `path` is the JSON path of the
    entry.
    """
    first, *others = mistakes
    if not others:
        return first
    text = str(first)
    for error in others:
        text = text.rstrip(".") + (" " if text.endswith("?") else "; ")
        text += f"{error.path.removeprefix(path).lstrip('.')}: {error}"
    return ConfigError(text.rstrip("."), path=first.path)


def started_part(raw: JsonValue) -> JsonObject | None:
    """Return the part of a server entry that decides which program it starts: `command`, `args`, `env` and `cwd`, as written.

    `None` if the entry starts no program, because it is switched off, invalid, or for a server with a URL.
    """
    if not isinstance(raw, dict):
        return None
    try:
        entry = _take_host_keys("", cast("JsonObject", raw), "", EntryResult())
        if entry.get("disabled") is True or _kind(entry, "") != "stdio":
            return None
    except ConfigError:
        return None  # `read_entry` disables the server of such an entry
    return {key: value for key, value in _plain_env(entry).items() if key in ("command", "args", "env", "cwd")}


def _looks_like(raw: JsonValue) -> Transport:
    """Return the transport that a server entry, which may be invalid, seems to describe."""
    if not isinstance(raw, dict) or "command" in raw:
        return "stdio"
    kind = cast("JsonObject", raw).get("type")
    if kind in ("sse", "stdio"):
        return kind
    return "http" if "url" in raw or "httpUrl" in raw or kind is not None else "stdio"


def _take_host_keys(name: str, raw: JsonObject, path: str, result: EntryResult) -> JsonObject:
    """Return a server entry without keys of other MCP hosts. These are renamed to Moongate's keys, or become notes or filters in `result`.

    Unknown keys stay in the entry.

    Raises:
        ConfigError: A key of another host has a wrong value, or is written beside Moongate's key with the same meaning.
    """
    entry: JsonObject = {}
    ignored: list[str] = []
    for key, value in raw.items():
        if key in IGNORED_KEYS:
            ignored.append(key)
        elif key in TOOL_FILTERS:
            _take_filter(name, key, value, path, result)
        elif key == "enabled":
            if not isinstance(value, bool):
                raise ConfigError("must be true or false, without quotes.", path=f"{path}.enabled")
            entry["disabled"] = entry.get("disabled") or not value
        elif key == "disabled":
            entry["disabled"] = entry.get("disabled") or value
        elif key not in HEADER_VARIABLES:
            _take_own_key(key, value, raw, path, entry)
    if found := _headers_from_variables(raw, path):
        headers = entry.get("headers", {})
        entry["headers"] = {**headers, **found} if isinstance(headers, dict) else headers
    if "httpUrl" in raw:
        entry["type"] = "http"
    if ignored:
        result.notes.append(f"{path}: {', '.join(ignored)} {'have' if len(ignored) > 1 else 'has'} no meaning for a gateway; ignored")
    return entry


def _headers_from_variables(raw: JsonObject, path: str) -> JsonObject:
    """Return the headers that Codex's keys `bearer_token_env_var` and `env_http_headers` describe, as `${VAR}` references."""
    bearer, others = (raw.get(key) for key in HEADER_VARIABLES)
    variables: JsonObject = {**others} if isinstance(others, dict) else {}
    if bearer is not None:
        variables["Authorization"] = bearer
    if not isinstance(others, dict | None) or not all(isinstance(name, str) and name.isidentifier() for name in variables.values()):
        text = f"`{HEADER_VARIABLES[0]}` takes the name of a variable, and `{HEADER_VARIABLES[1]}` an object of header names and variables."
        raise ConfigError(text, path=path)
    headers: JsonObject = {header: f"${{{name}}}" for header, name in variables.items()}
    return headers if bearer is None else {**headers, "Authorization": f"Bearer ${{{bearer}}}"}


def _take_own_key(key: str, value: JsonValue, raw: JsonObject, path: str, entry: JsonObject) -> None:
    own = KEY_ALIASES.get(key, key)
    if own != key and own in raw:
        if key == "httpUrl":
            entry[own] = value
            return
        raise ConfigError(f"`{key}` and `{own}` mean the same; keep one.", path=f"{path}.{key}")
    if own == "url" and "httpUrl" in raw and key != "httpUrl":
        return
    entry[own] = value


def _take_filter(name: str, key: str, value: JsonValue, path: str, result: EntryResult) -> None:
    items = cast("list[JsonValue]", value) if isinstance(value, list) else None
    if items is None or not all(isinstance(item, str) for item in items):
        raise ConfigError(f"`{key}` must be a list of tool names; better: policies.{name}.tools.", path=f"{path}.{key}")
    names = cast("list[str]", items)
    side = TOOL_FILTERS[key]
    if side == "allow" and "*" in names:
        return
    result.filters.setdefault(side, []).extend(names)
    result.notes.append(f"{path}.{key}: read as policies.{name}.tools.{side}")


def _misspelled_kind(entry: JsonObject) -> str | None:
    """Return `stdio` if a key of a server entry seems to be a misspelled `command`, `http` if it seems to be a misspelled `url`.

    Returns `None` otherwise. The caller checks the entry as a server of the returned transport. The error message then reports the
    misspelled key as unknown, and suggests the right key.
    """
    if entry.keys() & {"type", "command", "url"}:
        return None
    meant = {closest(key, ("command", "url")) for key in entry if key not in StdioServer.model_fields}
    return "stdio" if "command" in meant else "http" if "url" in meant else None


def _kind(entry: JsonObject, path: str) -> str:
    has_command, has_url = "command" in entry, "url" in entry
    if has_command and has_url:
        raise ConfigError("has both `command` and `url`; keep the one that is meant.", path=path)
    written = entry.get("type")
    if written is None:
        if not has_command and not has_url:
            raise ConfigError("needs `command` (a program) or `url` (an endpoint).", path=path)
        return "stdio" if has_command else "http"
    if not isinstance(written, str):
        raise ConfigError("`type` is a text: stdio, http or sse.", path=f"{path}.type")
    kind = TYPE_ALIASES.get(written, written)
    if kind not in _MODELS:
        hint = did_you_mean(written, [*_MODELS, *TYPE_ALIASES])
        raise ConfigError(f"type {written!r} is unknown; write stdio, http or sse. {hint}".rstrip(), path=f"{path}.type")
    needed = "command" if kind == "stdio" else "url"
    if needed not in entry:
        raise ConfigError(f"a server of type {written!r} needs `{needed}`.", path=path)
    return kind


def _unknown(name: str, entry: JsonObject, kind: str, path: str) -> list[ConfigError]:
    """Return a mistake for each key of the server entry `entry` that entries of its `kind` (stdio, http or sse) do not have."""
    known = list(_MODELS[kind].model_fields)
    mistakes: list[ConfigError] = []
    for key in entry:
        if key in known:
            continue
        elsewhere = [other for other, model in _MODELS.items() if key in model.model_fields]
        if elsewhere:
            text = f"`{key}` belongs to a server of type {elsewhere[0]}, and this one is {kind}."
            mistakes.append(ConfigError(text, path=f"{path}.{key}"))
            continue
        hint = did_you_mean(key, [*known, *KEY_ALIASES])
        if key in ("policies", "prefix", "arguments", "sampling", "elicitation", "roots", "era", "timeoutSeconds", "maxResultBytes"):
            hint = f"Rules stand beside the servers, under policies.{name}."
        mistakes.append(ConfigError(f"unknown key {key!r}. {hint}".rstrip(), path=f"{path}.{key}"))
    return mistakes


def _plain_env(entry: JsonObject) -> JsonObject:
    """Return a server entry in which numbers in `env` are text and `null` values are left out. VS Code allows both in `env`."""
    env = entry.get("env")
    if not isinstance(env, dict):
        return entry
    members = cast("JsonObject", env)
    plain = {
        key: str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
        for key, value in members.items()
        if value is not None
    }
    return {**entry, "env": plain}


def _shaped(entry: JsonObject, kind: str, path: str, mistakes: list[ConfigError]) -> ServerEntry | None:
    """Validate a server entry and return its model. If values are wrong, add the mistakes to `mistakes` and return `None`."""
    try:
        return _MODELS[kind].model_validate({**entry, "type": kind})
    except ValidationError as error:
        mistakes += [ConfigError(problem.text, path=problem.path) for problem in problems_of(error, _MODELS[kind], root=path)]
        return None


def _in_folder(server: ServerEntry | None, base_dir: Path) -> ServerEntry | None:
    """Return a server entry with its `cwd` as an absolute path, resolved against `base_dir`."""
    if not isinstance(server, StdioServer) or server.cwd is None:
        return server
    return server.model_copy(update={"cwd": str(base_dir / Path(server.cwd).expanduser())})


def _unusable_stdio(server: StdioServer, path: str, base_dir: Path) -> Iterator[ConfigError]:
    if not server.command.strip():
        yield ConfigError("the program is empty.", path=f"{path}.command")
    if any("\0" in text for text in (server.command, *server.args, *server.env, *server.env.values())):
        yield ConfigError("text with a NUL character cannot be passed to a program.", path=path)
    if any("=" in key or not key for key in server.env):
        yield ConfigError("a variable's name may not be empty or contain `=`.", path=f"{path}.env")
    if server.cwd is not None and not (base_dir / Path(server.cwd).expanduser()).is_dir():
        yield ConfigError(f"folder {server.cwd!r} does not exist.", path=f"{path}.cwd")


def is_header_value(text: str) -> bool:
    """Return whether a text is valid as the value of an HTTP header."""
    return all(character == "\t" or " " <= character <= "~" for character in text)


def _unusable_http(server: HttpServer | SseServer, path: str) -> Iterator[ConfigError]:
    try:
        parts = urlsplit(server.url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or any(character.isspace() for character in server.url):
        yield ConfigError("is not an http:// or https:// address with a host name, and a port from 1 to 65535 if any.", path=f"{path}.url")
    for name, value in server.headers.items():
        if not name or not name.isascii() or any(c in name for c in " \r\n\0:"):
            yield ConfigError(f"header name {name!r} is not allowed.", path=f"{path}.headers")
        if not is_header_value(value):
            text = "a header value may contain printable ASCII characters only; this value has another one, such as a line break or `…`."
            yield ConfigError(text, path=f"{path}.headers.{name}")
