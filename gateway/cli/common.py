"""Options that several commands share, loading the configuration for them, and running async work."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.app.acceptance import Acceptance
    from gateway.app.workers import Place
    from gateway.config.load import LoadedConfig
    from gateway.telemetry.logging import LogLevelName, SecretMask

T = TypeVar("T")

API_KEY_VARIABLE = "MOONGATE_API_KEY"
"""Environment variable with the API key that client commands send to a running gateway."""

CHARS_PER_TOKEN = 4
"""Characters that make a token, about: the tokenizers differ by model."""

CONFIG_HELP = "Configuration file. Default: $MOONGATE_CONFIG, ./gateway.json, ./config/gateway.json."
config_option = click.option("--config", "-c", "config_path", metavar="FILE", help=CONFIG_HELP)
json_option = click.option("--json", "as_json", is_flag=True, help="Data as JSON on stdout, a failure as one JSON line on stderr.")


def _checked_url(ctx: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    """The value of `--url`, which is refused if it is not the address of an endpoint. No program is asked."""
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


URL_HELP = "Endpoint of the gateway to ask. Default: the configured one if it runs."
url_option = click.option("--url", metavar="URL", callback=_checked_url, help=URL_HELP)


def _sendable(ctx: click.Context, option: click.Parameter, key: str | None) -> str | None:
    if key is not None and not (key.isascii() and key.isprintable()):
        raise click.UsageError(f"The API key (--api-key or ${API_KEY_VARIABLE}) has a character that no API key has, such as `…`.")
    return key


api_key_option = click.option(
    "--api-key", metavar="KEY", envvar=API_KEY_VARIABLE, callback=_sendable, help=f"API key for it; also ${API_KEY_VARIABLE}."
)
standalone_option = click.option("--standalone", is_flag=True, help="Start the configured sources for this command even if a gateway runs.")


class Choice(click.Choice[str]):
    """One of several words; a word like one of them is answered with it."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the choice, or name the choices once, and the one that was probably meant."""
        from gateway.config.suggest import did_you_mean

        if value in self.choices:
            return str(value)
        option = f"{param.opts[-1]}: " if isinstance(param, click.Option) else ""
        hint = did_you_mean(str(value), self.choices)
        raise click.UsageError(f"{option}{value!r} is not one of {', '.join(self.choices)}. {hint}".rstrip(), ctx)


class Commands(click.Group):
    """A group that answers an unknown command with the one that was probably meant."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with."""
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            from gateway.config.suggest import did_you_mean

            raise click.UsageError(f"There is no command {args[0]!r}. {did_you_mean(args[0], known)}".rstrip(), ctx)
        return super().resolve_command(ctx, args)


class Group(Commands):
    """A command with subcommands; without one of them it runs `default`."""

    default: tuple[str, ...] = ("--help",)
    """Words put before what was written where that names no subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Without a subcommand the default is parsed."""
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = [*self.default, *args]
        return super().parse_args(ctx, args)


class ListingGroup(Group):
    """A command that lists if no subcommand is written."""

    default = ("list",)


def load(config_path: str | None, *, fetches: bool = True, acceptance: Acceptance | None = None) -> LoadedConfig:
    """Load the configuration for a command and quiet the log; without `fetches` no `${cmd:…}` is run. Raises `ConfigError`."""
    loaded = load_quietly(config_path, fetches=fetches, acceptance=acceptance)
    configure_log(loaded, "error")
    return loaded


def load_quietly(config_path: str | None, *, fetches: bool = True, acceptance: Acceptance | None = None) -> LoadedConfig:
    """Load the configuration and leave the log alone; `acceptance` decides which programs may run for it.

    Without one a program runs unless a running gateway held it back. Raises `ConfigError`.
    """
    from gateway.app.acceptance import Acceptance
    from gateway.config.load import load_config

    # So that an entry can start a Python server with the Python that has the SDK, wherever the gateway is installed.
    environ = {"MOONGATE_PYTHON": sys.executable, **os.environ}
    return load_config(config_path, environ, fetches=fetches, admission=acceptance or Acceptance())


@contextlib.contextmanager
def diverted_stdout() -> Generator[None]:
    """Descriptor 1 on stderr meanwhile: modules of the user may print when they are imported, and stdout is data or the wire."""
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
    loaded: LoadedConfig, place: Place | None = None, acceptance: Acceptance | None = None, endpoint: str | None = None
) -> AsyncGenerator[Gateway]:
    """A gateway with its sources starting, or one worker's part of it, to be served at `endpoint`; left in reverse."""
    from gateway.app import Gateway

    async with contextlib.AsyncExitStack() as stack:
        with diverted_stdout():
            gateway = await stack.enter_async_context(Gateway.from_config(loaded, place=place, acceptance=acceptance, endpoint=endpoint))
        yield gateway


def run_async(work: Callable[[], Awaitable[T]], *, serves: bool = False) -> T:
    """Run `work` in an event loop; an exception inside task groups comes out as itself.

    What `serves` over HTTP runs on uvloop where that is installed: a call takes a tenth less of the processor there. Over stdio its
    import costs more than it gives.
    """
    from importlib.util import find_spec

    import anyio

    from gateway.cli.failures import unwrap

    async def inner() -> T:
        return await work()

    try:
        return anyio.run(inner, backend_options={"use_uvloop": serves and find_spec("uvloop") is not None})
    except BaseExceptionGroup as group:
        raise unwrap(group) from None


def configure_log(loaded: LoadedConfig, level: LogLevelName | None = None, mask: SecretMask | None = None) -> SecretMask:
    """Send the log to stderr with the configuration's secrets masked, beside those of `mask`; `level` overrides the configured one.

    Returns the mask, which is `mask` itself where one is given.
    """
    from gateway.telemetry.logging import SecretMask, configure_logging

    mask = mask or SecretMask()
    for secret in loaded.secrets:
        mask.register_secret(secret)
    configure_logging(level or loaded.config.server.log_level, mask=mask)
    return mask


def export_telemetry(mask: SecretMask) -> None:
    """Set up traces and metrics where the environment asks for them (`ENABLE_INSTRUMENTATION`), without the secrets of `mask`.

    Raises:
        ConfigError: It does, and the extra that exports them is not installed.
    """
    if os.environ.get("ENABLE_INSTRUMENTATION"):
        from gateway.telemetry.instrumentation import enable_instrumentation
        from gateway.telemetry.providers import is_wanted, set_up_providers

        try:
            if is_wanted():
                set_up_providers(mask=mask.mask)
                enable_instrumentation()
        except ModuleNotFoundError as error:
            from gateway.errors import ConfigError

            raise ConfigError(f"ENABLE_INSTRUMENTATION is set: {error}", path="ENABLE_INSTRUMENTATION") from None
