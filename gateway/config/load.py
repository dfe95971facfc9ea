"""Loads `gateway.json`: finds and reads the file, expands `${…}` references, validates the result, and reports mistakes.

A mistake inside a server entry, or inside `auth` of its policy, disables that server; any other mistake is a `ConfigError`. What may be a
mistake, such as a missing folder, becomes a note in `LoadedConfig.problems`. Loading does not start or connect to servers. Used by the CLI
and by programs that embed a gateway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from pydantic import ValidationError

from gateway.config.executes import Admission, RunEntry, run_entries, secret_entry
from gateway.config.expand import Expander, own_keys
from gateway.config.hosts import IGNORED_ROOT_KEYS
from gateway.config.installation_key import decode_installation_key
from gateway.config.issuer_secrets import with_issuer_secrets
from gateway.config.jsonc import parse
from gateway.config.models import GatewayConfig, ServerEntry, StdioServer, judge_policy_name, judge_server_name
from gateway.config.outbound import is_open, read_auth
from gateway.config.paths import did_you_mean_path, find_config, is_bundled_config
from gateway.config.problems import keys_of, problems_of
from gateway.config.read_entries import DisabledServer, read_entry
from gateway.config.references import NotAccepted, References
from gateway.config.skill_folders import package_folders, vendor_folders
from gateway.config.skill_settings import SignatureRule
from gateway.config.suggest import did_you_mean
from gateway.database_url import database_url_mistake
from gateway.errors import ConfigError
from gateway.json_types import JsonObject, JsonValue, as_object, items_of, members_of

__all__ = ["DisabledServer", "LoadedConfig", "load_config"]

MAX_CONFIG_BYTES = 4_194_304
"""Maximum size of a configuration file; a larger file is rejected. Real files are smaller than 100 kB."""

SETTINGS_SECTIONS = ("expose", "server", "storage", "sessions", "tasks", "secrets", "defaults")
"""Sections in which a `${…}` reference is rejected as a mistake, except in the keys of `OWN_SECRETS` and in secrets of issuers."""

OWN_SECRETS = {
    "storage.url": False,
    "storage.installationKey": True,
    "storage.s3.accessKey": False,
    "storage.s3.secretKey": True,
    "storage.s3.sessionToken": True,
    "server.http.tls.keyPassword": True,
    "tasks.temporal.apiKey": True,
}
"""Keys outside of server entries in which references are expanded → whether a value in place of a reference is noted as a mistake.

Their values are masked in all output. A URL may contain a password in a reference."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A loaded and valid configuration, with references expanded and absolute paths, and the notes and problems found on loading it."""

    config: GatewayConfig
    """The validated configuration. Its `mcp_servers` contains only servers that can start."""
    path: Path | None
    """The file from which the configuration was read; `None` without a file."""
    base_dir: Path
    """The folder against which relative paths of the file were resolved."""
    disabled: list[DisabledServer]
    """Servers that cannot start, each with the reason."""
    notes: list[str]
    """Notes for the user, such as ignored keys of other hosts."""
    problems: list[str]
    """Notes about probable mistakes, such as policies without a source and missing folders."""
    secrets: frozenset[str]
    """Secret values of the configuration and its environment, to be masked in all output."""
    is_complete: bool = True
    """False if secrets were not fetched from programs and the keyring, so that servers that need such secrets cannot be reached."""
    runs: tuple[RunEntry, ...] = ()
    """Entries of the configuration that make the gateway execute a command, Python module or script.

    They include servers that wait to be accepted, but not servers that are switched off. A person must accept new and changed entries
    before they run.
    """
    idle: frozenset[str] = frozenset()
    """Names of servers of the bundled configuration that were left out, because they need environment variables that are not set."""

    @property
    def lock_path(self) -> Path | None:
        """Path of the lock file, to which `moongate lock` writes the accepted tool definitions; `None` without a configuration file."""
        written = self.config.server.lock_file
        if written is not None:
            return self.base_dir / Path(written).expanduser()
        return self.path.with_name(f"{self.path.stem}.lock.json") if self.path is not None else None

    def located(self, entry: ServerEntry) -> ServerEntry:
        """Return a copy of a stdio server's entry with an absolute working directory; entries of other servers are returned unchanged."""
        if isinstance(entry, StdioServer):
            return entry.model_copy(update={"cwd": str(self.base_dir / entry.cwd) if entry.cwd else str(self.base_dir)})
        return entry


def load_config(
    path: str | Path | None, environ: Mapping[str, str], *, fetches: bool = True, admission: Admission | None = None
) -> LoadedConfig:
    """Load the configuration file `path` or, if it is `None`, the first file that `paths.find_config` finds; without a file, the defaults.

    With `fetches` false, no program runs and no keyring is read for the secrets of servers; the keys of `OWN_SECRETS` are always expanded.
    `admission` decides which programs may run. `environ` are the environment variables to which references refer.

    Raises:
        ConfigError: The file cannot be used. Each line of the message names the file and, if it is known, the place in it.
    """
    found = find_config(path, environ)
    if found is None:
        return LoadedConfig(GatewayConfig(), None, Path.cwd(), [], ["no configuration file found"], [], frozenset())
    loaded = load_text(read_text(found), found, environ, fetches=fetches, admission=admission)
    return _without_idle_examples(loaded) if is_bundled_config(found) else loaded


def _without_idle_examples(loaded: LoadedConfig) -> LoadedConfig:
    """Return the bundled configuration without its disabled servers, which need environment variables that are not set."""
    idle = {server.name for server in loaded.disabled}
    policies = {name: policy for name, policy in loaded.config.policies.items() if name not in idle}
    return replace(loaded, config=loaded.config.model_copy(update={"policies": policies}), disabled=[], idle=frozenset(idle))


def read_text(path: Path) -> str:
    """Return the text of a configuration file.

    Raises:
        ConfigError: The file cannot be read, is too large or is not UTF-8.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_CONFIG_BYTES + 1)
        if len(data) > MAX_CONFIG_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_CONFIG_BYTES} bytes.", path=str(path))
        return data.decode()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or 'unknown reason'}.", path=str(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start}).", path=str(path)) from None


def load_text(
    text: str, path: Path, environ: Mapping[str, str], *, fetches: bool = True, admission: Admission | None = None
) -> LoadedConfig:
    """Load a configuration from the text of its file. The other arguments and the errors are those of `load_config`, which reads a file.

    `path` is the path of the file: error messages contain it, and relative paths are resolved against its folder.
    """
    document = _document(text, path)
    try:
        return _load(document, path, environ, fetches=fetches, admission=admission)
    except ConfigError as error:
        lines = "\n".join(f"{path}: {line}" for line in str(error).splitlines())
        raise ConfigError(lines, path=error.path) from None


def read_runs(text: str, path: Path) -> tuple[tuple[RunEntry, ...], str | None]:
    """Return the entries of a configuration that make the gateway execute a command or module, and the absolute path of its `storage.dir`.

    The path is `None` if `storage.dir` is not set. `text` is the content of the file `path`. Nothing is executed, and references are not
    expanded.

    Raises:
        ConfigError: The text is not a JSON object, has unknown top-level keys, or has both `mcpServers` and `servers`.
    """
    mistakes: list[ConfigError] = []
    root = _own_root(_document(text, path), [], mistakes)
    if mistakes:
        raise mistakes[0]
    return run_entries(root, path.parent), _state_folder(root, path.parent)


def _document(text: str, path: Path) -> JsonObject:
    document = as_object(parse(text, name=str(path)))
    if document is None:
        raise ConfigError(f"{path}: the file must hold one JSON object.", path=str(path))
    return document


def _state_folder(root: JsonObject, base_dir: Path) -> str | None:
    written = members_of(root.get("storage")).get("dir")
    return str(_resolved(base_dir, written)) if isinstance(written, str) else None


def _load(
    document: JsonObject, path: Path, environ: Mapping[str, str], *, fetches: bool, admission: Admission | None
) -> LoadedConfig:
    base_dir = path.parent
    notes: list[str] = []
    mistakes: list[ConfigError] = []
    root = _own_root(document, notes, mistakes)
    key = "servers" if "servers" in document else "mcpServers"
    references = References(environ, base_dir, _object(root, "secrets", mistakes), fetches)
    if admission is not None:
        admission.open(path, _state_folder(root, base_dir))
        references.refusal = lambda name, written: admission.refusal(secret_entry(name, written))
    expander = Expander(environ, references)
    servers: dict[str, ServerEntry] = {}
    disabled: list[DisabledServer] = []
    policies = _object(root, "policies", mistakes)
    for name, raw in _object(root, "mcpServers", mistakes).items():
        if (mistake := _name_mistake(name, f"{key}.{name}")) is not None:
            mistakes.append(mistake)
            continue
        result = read_entry(name, raw, expander, path=f"{key}.{name}")
        notes += result.notes
        if result.disabled is not None:
            disabled.append(result.disabled)
        if result.server is not None:
            servers[name] = result.server
            for side, tools in result.filters.items():
                policies = _with_filter(policies, name, side, tools)
    for name, entry in list(servers.items()):
        written = as_object(members_of(policies.get(name)).get("auth"))  # a value that is not an object is reported by the validation
        if written is None:
            continue
        try:
            auth, remarks = read_auth(written, entry, expander, path=f"policies.{name}.auth")
        except ConfigError as error:
            waits_for = error.key if isinstance(error, NotAccepted) else ""
            disabled.append(DisabledServer(name, error.path, str(error), waits_for=waits_for))
            del servers[name]
            continue
        policies = {**policies, name: {**cast("JsonObject", policies[name]), "auth": auth}}
        notes += remarks
    root = with_issuer_secrets(_with_own_secrets(root, expander.fetching(), notes), expander.fetching(), notes)
    for section in SETTINGS_SECTIONS:
        _refuse_references(root.get(section), section, mistakes)
    config = _validated({**root, "mcpServers": servers, "policies": policies}, mistakes, disabled)
    problems = _idle_policies(config, {*servers, *(server.name for server in disabled)})
    masks = frozenset((*expander.secrets, *own_keys(environ)))
    runs = run_entries(root, base_dir)
    return LoadedConfig(_absolute(config, base_dir, problems), path, base_dir, disabled, notes, problems, masks, fetches, runs)


def _validated(root: JsonObject, mistakes: Sequence[ConfigError], disabled: Sequence[DisabledServer]) -> GatewayConfig:
    """Validate the document `root` of a configuration file and return it as a `GatewayConfig`.

    `mistakes` are the errors that earlier steps found in the file, and `disabled` the servers that cannot start.

    Raises:
        ConfigError: The document is invalid, or `mistakes` is not empty. The message has all mistakes, one per line.
    """
    found = {error.path: str(error) for error in mistakes}
    config = None
    try:
        config = GatewayConfig.model_validate(root)
    except ValidationError as error:
        for problem in problems_of(error, GatewayConfig):
            found.setdefault(problem.path, problem.line())
    if config is not None and not found:
        return config
    path = next(iter(found))
    for server in disabled:
        if not server.json_path.endswith(".disabled"):
            found.setdefault(server.json_path, f"{server.json_path}: {server.reason}")
    raise ConfigError("\n".join(found.values()), path=path)


def _with_own_secrets(root: JsonObject, expander: Expander, notes: list[str]) -> JsonObject:
    """Return the decoded configuration with the references in the keys of `OWN_SECRETS` expanded.

    A note is added to `notes` for each of them that should be a reference and is not, and for an endpoint of results without encryption.

    Raises:
        ConfigError: A reference cannot be expanded, or the installation key or the database URL cannot be used.
    """
    for path, should_refer in OWN_SECRETS.items():
        *sections, key = path.split(".")
        inner = root
        for section in sections:
            inner = members_of(inner.get(section))
        if not isinstance(written := inner.get(key), str):
            continue
        if should_refer and "${" not in written:
            notes.append(f"{path}: a secret stands in the file; write a reference such as `${{VAR}}` or `${{file:PATH}}`")
        secret = expander.secret(written, path=path)
        if path == "storage.installationKey":
            decode_installation_key(secret)
        if path == "storage.url" and (mistake := database_url_mistake(secret)) is not None:
            raise ConfigError(f"{path}: {mistake}.", path=path)
        root = _replaced(root, [*sections, key], secret)
    endpoint = members_of(members_of(root.get("storage")).get("s3")).get("endpoint")
    with suppress(ValueError):  # a malformed endpoint is reported by the validation
        if isinstance(endpoint, str) and is_open(endpoint):
            notes.append(f"storage.s3.endpoint: results travel unencrypted to {urlsplit(endpoint).hostname}; use https")
    return root


def _replaced(root: JsonObject, path: Sequence[str], value: str) -> JsonObject:
    """Return a copy of a JSON object with the value at `path` replaced. All objects on the path exist."""
    head, *rest = path
    return {**root, head: _replaced(members_of(root[head]), rest, value) if rest else value}


def _own_root(document: JsonObject, notes: list[str], mistakes: list[ConfigError]) -> JsonObject:
    """Return the decoded configuration file with only Moongate's top-level keys: `servers` becomes `mcpServers`, other keys are removed.

    Adds a note to `notes` for each removed key that other MCP hosts use, and an error to `mistakes` for each unknown key.
    """
    root = {key: value for key, value in document.items() if key not in IGNORED_ROOT_KEYS}
    notes += [f"{key}: {IGNORED_ROOT_KEYS[key]}; ignored" for key in document if key in IGNORED_ROOT_KEYS]
    if "servers" in root:
        if "mcpServers" in root:
            mistakes.append(ConfigError("servers: means the same as mcpServers; keep one of the two.", path="servers"))
        root["mcpServers"] = root.pop("servers")
    known = keys_of(GatewayConfig)
    unknown = [key for key in root if key not in known]
    mistakes += [ConfigError(f"{key}: unknown key {key!r}. {did_you_mean(key, known)}".rstrip(), path=key) for key in unknown]
    return {key: value for key, value in root.items() if key in known}


def _object(root: JsonObject, key: str, mistakes: list[ConfigError]) -> JsonObject:
    value = root.get(key, {})
    if not isinstance(value, dict):
        mistakes.append(ConfigError(f"{key}: must be an object.", path=key))
        return {}
    return cast("JsonObject", value)


def _name_mistake(name: str, path: str) -> ConfigError | None:
    if (problem := judge_server_name(name)) is None:
        return None
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name.rpartition("/")[2] or name).strip("-")[:40] or "server"
    hint = f"; rename it, e.g. to {plain!r}" if plain != name else ""
    return ConfigError(f"{path}: the {problem}{hint}.", path=path)


def _with_filter(policies: JsonObject, name: str, side: str, tools: list[str]) -> JsonObject:
    """Return the section `policies` with the tool names `tools` added to the policy of the server `name`.

    They are added to the policy's list `tools.allow` or `tools.deny`, as `side` says. A list `allow` that exists already stays unchanged.
    The names come from a key in the server's entry by which another MCP host filters tools.
    """
    own = as_object(policies.get(name, {}))
    rules = as_object(own.get("tools", {})) if own is not None else None
    if own is None or rules is None:
        return policies
    written = rules.get(side)
    if side == "allow" and written is not None:
        return policies
    merged = [*cast("list[str]", written), *tools] if isinstance(written, list) else tools
    return {**policies, name: {**own, "tools": {**rules, side: merged}}}


def _refuse_references(value: JsonValue, path: str, mistakes: list[ConfigError]) -> None:
    if isinstance(value, str) and "${" in value:
        mistakes.append(ConfigError(f"{path}: `${{…}}` is read inside server entries only; write the value itself.", path=path))
    for key, item in members_of(value).items():
        _refuse_references(item, f"{path}.{key}", mistakes)
    for index, item in enumerate(items_of(value)):
        _refuse_references(item, f"{path}[{index}]", mistakes)


def _idle_policies(config: GatewayConfig, servers: set[str]) -> list[str]:
    judged = {name: judge_policy_name(name, servers) for name in config.policies}
    return [f"policies.{name}: {problem}" for name, problem in judged.items() if problem is not None]


def _absolute(config: GatewayConfig, base_dir: Path, problems: list[str]) -> GatewayConfig:
    """Return the configuration with the paths in `expose`, `skills`, `storage` and both `tls` sections resolved against `base_dir`.

    `base_dir` is the folder of the configuration file. Missing folders are added to `problems`.
    """
    agents = [_resolved(base_dir, folder) for folder in config.expose.agents]
    skills = [_resolved(base_dir, folder) for folder in config.expose.skills]
    skills += [*vendor_folders(config.skills.vendors, base_dir, Path.home()), *package_folders(config.skills.packages)]
    for key, folders in (("agents", agents), ("skills", skills)):
        missing = [(index, folder) for index, folder in enumerate(folders) if not folder.exists()]
        for index, folder in missing:
            problems.append(f"expose.{key}[{index}]: {str(folder)!r} does not exist. {did_you_mean_path(folder)}".rstrip(". "))
    expose = config.expose.model_copy(update={"agents": [str(p) for p in agents], "skills": [str(p) for p in skills]})
    signatures = _signatures(config.skills.signatures, skills, base_dir)
    update: JsonObject = {"expose": expose, "skills": config.skills.model_copy(update={"signatures": signatures})}
    if (tls := config.tasks.temporal.tls) is not None:
        files: JsonObject = {"ca": tls.ca, "cert": tls.cert, "key": tls.key}
        found = {name: None if path is None else str(_resolved(base_dir, path)) for name, path in files.items()}
        temporal = config.tasks.temporal.model_copy(update={"tls": tls.model_copy(update=found)})
        update["tasks"] = config.tasks.model_copy(update={"temporal": temporal})
    if config.storage.dir is not None:
        update["storage"] = config.storage.model_copy(update={"dir": str(_resolved(base_dir, config.storage.dir))})
    if (tls := config.server.http.tls) is not None:
        # Links are kept, because a renewal replaces the link.
        files = {key: str(base_dir / Path(getattr(tls, key)).expanduser()) for key in ("certificate", "key")}
        http = config.server.http.model_copy(update={"tls": tls.model_copy(update=files)})
        update["server"] = config.server.model_copy(update={"http": http})
    return config.model_copy(update=update)


def _signatures(rules: Mapping[str, SignatureRule], folders: Sequence[Path], base_dir: Path) -> dict[str, SignatureRule]:
    """Return the rules in `skills.signatures` with absolute paths of skill folders, key files and certificates.

    Raises:
        ConfigError: A rule is for a folder that is not in `folders`, the folders with skills.
    """
    resolved: dict[str, SignatureRule] = {}
    for written, rule in rules.items():
        folder = _resolved(base_dir, written)
        if folder not in folders:
            raise ConfigError(
                f"skills.signatures: {written!r} is not a folder of `expose.skills`, so nothing would be checked. Name one of those.",
                path="skills.signatures",
            )
        files = {key: str(_resolved(base_dir, path)) for key in ("public_key", "trust_config") if (path := getattr(rule, key)) is not None}
        certificates = [str(_resolved(base_dir, path)) for path in rule.certificates]
        resolved[str(folder)] = rule.model_copy(update={**files, "certificates": certificates})
    return resolved


def _resolved(base_dir: Path, written: str) -> Path:
    return (base_dir / Path(written).expanduser()).resolve()
