"""Functions and options that several commands use: to load the configuration, write the log, and run the event loop."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from gateway.cli.failures import CommandFailed
from gateway.errors import NotFound

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.sdk.metrics.export import MetricReader

    from gateway.app import Gateway
    from gateway.config.load import LoadedConfig
    from gateway.gate.acceptance import Acceptance
    from gateway.storage.state_folder import StateFolder
    from gateway.telemetry.logging import LogLevelName, SecretMask

T = TypeVar("T")
CommandT = TypeVar("CommandT", bound=Callable[..., object])

API_KEY_VARIABLE = "MOONGATE_API_KEY"
"""Name of the environment variable with the API key that a command sends to a running gateway."""

CHARS_PER_TOKEN = 4
"""Number of characters that count as one token in estimates. Counts are not exact, because tokenizers differ by model."""

CONFIG_HELP = "Configuration file. Default: $MOONGATE_CONFIG, ./gateway.json, ./config/gateway.json."
config_option = click.option("--config", "-c", "config_path", metavar="FILE", help=CONFIG_HELP)
json_option = click.option("--json", "as_json", is_flag=True, help="Print data as JSON on stdout, a failure as JSON on stderr.")


def _checked_url(ctx: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    """Return the value of `--url`; raise `click.UsageError` if it is not an HTTP URL. Sends no request."""
    from urllib.parse import urlsplit

    if url is None:
        return None
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url
    except ValueError:  # not a port, or not an IPv6 address
        pass
    raise click.UsageError(f"--url {url!r} is not the URL of an endpoint, like http://127.0.0.1:8765/mcp.", ctx)


URL_HELP = "Endpoint of the gateway to use. Default: the gateway of this configuration, if it runs."
url_option = click.option("--url", metavar="URL", callback=_checked_url, help=URL_HELP)


def _sendable(ctx: click.Context, option: click.Parameter, key: str | None) -> str | None:
    if key is not None and not (key.isascii() and key.isprintable()):
        raise click.UsageError(f"The API key (--api-key or ${API_KEY_VARIABLE}) has a character that no API key has, such as `…`.")
    return key


api_key_option = click.option(
    "--api-key", metavar="KEY", envvar=API_KEY_VARIABLE, callback=_sendable, help=f"API key for the gateway; also ${API_KEY_VARIABLE}."
)
standalone_option = click.option("--standalone", is_flag=True, help="Start the configured sources for this command even if a gateway runs.")


def data_options(command: CommandT) -> CommandT:
    """Add the options `--config` and `--json` to a command."""
    return config_option(json_option(command))


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """The values of the options `--url`, `--api-key` and `--standalone`, which select the gateway that a command uses."""

    url: str | None = None
    api_key: str | None = None
    standalone: bool = False

    def __post_init__(self) -> None:
        """Raise `CommandFailed` if both `--url` and `--standalone` were given, because they exclude each other."""
        if self.url is not None and self.standalone:
            raise CommandFailed("--url uses a running gateway, and --standalone uses none. Give one of them.", code="usage")


def gateway_options(command: Callable[..., object]) -> Callable[..., object]:
    """Add the options `--url`, `--api-key` and `--standalone` to a command, which receives them as one parameter `target`."""

    @functools.wraps(command)
    def with_target(url: str | None, api_key: str | None, standalone: bool, **given: object) -> object:
        return command(target=Target(url, api_key, standalone), **given)

    return url_option(api_key_option(standalone_option(with_target)))


class Choice(click.Choice[str]):
    """Type of a command-line parameter with a fixed set of values. The message for an unknown value suggests the closest value."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return `value` if it is one of the choices, else raise `click.UsageError`."""
        from gateway.config.suggest import did_you_mean

        if value in self.choices:
            return str(value)
        option = f"{param.opts[-1]}: " if isinstance(param, click.Option) else ""
        hint = did_you_mean(str(value), self.choices)
        raise click.UsageError(f"{option}{value!r} is not one of {', '.join(self.choices)}. {hint}".rstrip(), ctx)


class Commands(click.Group):
    """A group of commands whose message for an unknown command suggests the closest command."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name of the command that `args` begin with, the command, and the remaining words.

        Raises:
            click.UsageError: The command is unknown.
        """
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            from gateway.config.suggest import did_you_mean

            raise click.UsageError(f"Unknown command {args[0]!r}. {did_you_mean(args[0], known)}".rstrip(), ctx)
        return super().resolve_command(ctx, args)


class Group(Commands):
    """A command group that runs the subcommand `default` if none is named."""

    default: tuple[str, ...] = ("--help",)
    """Words that are inserted before the arguments if the arguments name no subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the words of `default` before the arguments if no subcommand is named, and parse the arguments."""
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = [*self.default, *args]
        return super().parse_args(ctx, args)


class ListingGroup(Group):
    """A command group that runs the subcommand `list` if none is named."""

    default = ("list",)


def load(config_path: str | None, *, fetches: bool = True, acceptance: Acceptance | None = None) -> LoadedConfig:
    """Load the configuration for a command, and log only errors from now on.

    A reference `${cmd:NAME}` in the configuration is replaced by the output of a program. If `fetches` is false, no such program runs.
    `acceptance` decides which programs may run: by default, all except new or changed ones that wait until the user has accepted them.

    Raises `ConfigError`.
    """
    loaded = load_quietly(config_path, fetches=fetches, acceptance=acceptance)
    configure_log(loaded, "error")
    return loaded


def load_quietly(config_path: str | None, *, fetches: bool = True, acceptance: Acceptance | None = None) -> LoadedConfig:
    """Load the configuration for a command, without changing the log level.

    A reference `${cmd:NAME}` is replaced by the output of a program. If `fetches` is false, no such program runs. `acceptance` decides
    which programs may run: by default, all except new or changed ones that wait until the user has accepted them.

    Raises `ConfigError`.
    """
    from gateway.config.load import load_config
    from gateway.gate.acceptance import Acceptance

    # An entry can start a Python server with the interpreter that runs Moongate.
    environ = {"MOONGATE_PYTHON": sys.executable, **os.environ}
    return load_config(config_path, environ, fetches=fetches, admission=acceptance or Acceptance())


def state_folder_of(loaded: LoadedConfig) -> StateFolder:
    """Return the state folder of a configuration, after a killed restore of this folder has been finished.

    Raises:
        StorageError: No folder is configured and the system has no default, or a killed restore must be repeated.
    """
    from gateway.storage.interrupted_restore import finish_restore
    from gateway.storage.state_folder import StateFolder, state_dir

    storage = loaded.config.storage
    folder = StateFolder(state_dir(storage.dir), storage.root_key)
    finish_restore(folder.path)
    return folder


def key_file_of(loaded: LoadedConfig) -> Path:
    """Return the path of the file with the API keys, which all gateways with this configuration's state folder use."""
    return state_folder_of(loaded).path / "keys.json"


def with_servers(loaded: LoadedConfig, names: Sequence[str], **rules: object) -> LoadedConfig:
    """Return the configuration with only the servers `names`, set to start at once. `rules` replace keys of the servers' policies."""
    config = loaded.config
    eager = {name: config.policy(name).model_copy(update={"start": "eager", **rules}) for name in names}
    servers, policies = {name: config.mcp_servers[name] for name in names}, {**config.policies, **eager}
    return dataclasses.replace(loaded, config=config.model_copy(update={"mcp_servers": servers, "policies": policies}))


def require_servers(loaded: LoadedConfig, names: Iterable[str]) -> None:
    """Check that every name is a configured server. Raises `NotFound`, whose text says why the server is disabled, or suggests a name."""
    from gateway.config.suggest import did_you_mean

    for name in names:
        if name not in loaded.config.mcp_servers:
            text = next((f"{server.json_path}: {server.reason}." for server in loaded.disabled if server.name == name), "")
            hint = did_you_mean(name, loaded.config.mcp_servers) or "`moongate list servers` shows them."
            raise NotFound("server", name, f"Server {name!r} cannot be used: {text}" if text else f"Unknown server {name!r}. {hint}")


@contextlib.contextmanager
def diverted_stdout() -> Generator[None]:
    """Redirect stdout (descriptor 1) to stderr inside the block, because user modules may print when they are imported.

    stdout carries the command's data or MCP messages.
    """
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


@contextlib.asynccontextmanager
async def running(
    loaded: LoadedConfig, acceptance: Acceptance | None = None, endpoint: str | None = None, *, dispatches: bool = True
) -> AsyncGenerator[Gateway]:
    """Start a gateway with this configuration and yield it; its servers connect in the background.

    The arguments are those of `Gateway.from_config`. `acceptance` decides which commands of the configuration may be executed.
    """
    from gateway.app import Gateway

    async with contextlib.AsyncExitStack() as stack:
        with diverted_stdout():
            made = Gateway.from_config(loaded, acceptance=acceptance, endpoint=endpoint, dispatches=dispatches)
            gateway = await stack.enter_async_context(made)
        yield gateway


def run_async(work: Callable[[], Awaitable[T]], *, serves: bool = False) -> T:
    """Run `work` in a new event loop and return its result. If it raises an exception group, raise the group's first exception.

    If `serves` is true, uvloop is used if it is installed, because a call over HTTP takes 10 % less CPU with uvloop. Over stdio, importing
    uvloop costs more than it saves.
    """
    from importlib.util import find_spec

    import anyio

    from gateway.errors import first_cause

    async def inner() -> T:
        return await work()

    try:
        return anyio.run(inner, backend_options={"use_uvloop": serves and find_spec("uvloop") is not None})
    except BaseExceptionGroup as group:
        raise first_cause(group) from None


def configure_log(loaded: LoadedConfig, level: LogLevelName | None = None, mask: SecretMask | None = None) -> SecretMask:
    """Write the log to stderr with secrets masked; `level` overrides the level in the configuration.

    Return the object that masks secrets: `mask` if it is given, otherwise a new object. The configuration's secrets are added to it.
    """
    from gateway.telemetry.logging import SecretMask, configure_logging

    mask = mask or SecretMask()
    for secret in loaded.secrets:
        mask.register_secret(secret)
    configure_logging(level or loaded.config.server.log_level, mask=mask)
    return mask


def export_telemetry(mask: SecretMask, *, for_prometheus: bool = False) -> None:
    """Export traces and metrics if `ENABLE_INSTRUMENTATION` is set; secrets of `mask` are masked.

    With `for_prometheus`, metrics go to the registry of the Prometheus client library, too, or only there.

    Raises:
        ConfigError: The extra that exports telemetry is not installed.
    """
    from gateway.telemetry.instrumentation import enable_instrumentation, is_set

    is_instrumented = is_set("ENABLE_INSTRUMENTATION")
    if not is_instrumented and not for_prometheus:
        return
    from gateway.telemetry.providers import set_up_metrics, set_up_providers

    try:
        readers: list[MetricReader] = []
        if for_prometheus:
            from gateway.telemetry.prometheus import prometheus_reader

            readers.append(prometheus_reader())
        if is_instrumented:
            set_up_providers(mask=mask.mask, readers=readers)
            enable_instrumentation()
        else:
            set_up_metrics(readers)
    except ModuleNotFoundError as error:
        from gateway.errors import ConfigError

        key = "telemetry.prometheus" if for_prometheus else "ENABLE_INSTRUMENTATION"
        raise ConfigError(f"{key} is set: {error}", path=key) from None
