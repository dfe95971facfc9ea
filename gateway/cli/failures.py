"""Maps exceptions to error codes and exit codes of the command line. Used by `main`; commands raise `CommandFailed` to choose a code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, cast

import click

from gateway.errors import (
    Collision,
    ConfigError,
    GatewayError,
    NotFound,
    NotSent,
    PolicyDenied,
    Rejected,
    StorageError,
    Unauthorized,
    UpstreamTimeout,
)
from gateway.json_types import JsonObject

Code = Literal[
    "usage", "config-invalid", "needs-auth", "unreachable", "tool-error", "lock-differs", "skills-rejected", "workflows-rejected", "denied",
    "not-found", "policy-findings", "policy-test", "database-damaged", "migration-waits",
]

EXIT_CODES: dict[Code, int] = {
    "usage": 1,
    "not-found": 1,
    "policy-findings": 1,
    "policy-test": 1,
    "config-invalid": 2,
    "needs-auth": 3,
    "unreachable": 4,
    "tool-error": 5,
    "lock-differs": 5,
    "skills-rejected": 5,
    "workflows-rejected": 5,
    "database-damaged": 5,
    "denied": 6,
    "migration-waits": 7,
}
"""Exit code of the process for each error code. These numbers are part of the CLI's interface."""


class NeedsAuth(GatewayError):
    """The running gateway requires an API key that the command did not send, or it rejected the key that the command sent."""


class CommandFailed(GatewayError):
    """A command failed, possibly after it printed its results. `code` is the error code, from which the exit code follows."""

    def __init__(self, message: str, *, code: Code) -> None:
        super().__init__(message)
        self.code: Code = code


@dataclass(frozen=True, slots=True)
class Outcome:
    """The error that a failed command reports, and its exit code."""

    code: Code
    message: str
    details: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Further keys of the error as JSON, such as `path`."""
    usage: str = ""
    """A hint that names the command's `--help`, printed after the message; empty for no hint."""

    @property
    def exit_code(self) -> int:
        """The process's exit code."""
        return EXIT_CODES[self.code]

    def to_json(self) -> JsonObject:
        """Return the error object that `--json` prints: `code`, `message` and the keys of `details`."""
        return {"code": self.code, "message": self.message, **self.details}


def outcome_of(error: BaseException) -> Outcome | None:
    """Return the error that a command reports if it raised `error`; `None` for an unexpected exception, which is a programming mistake."""
    text = str(error)
    match error:
        case click.ClickException():
            ctx = getattr(error, "ctx", None)
            usage = f"Try `{ctx.command_path} --help`." if isinstance(ctx, click.Context) else ""
            return Outcome("usage", error.format_message(), usage=usage)
        case CommandFailed():
            return Outcome(error.code, text)
        case NeedsAuth():
            return Outcome("needs-auth", text)
        case ConfigError():
            return Outcome("config-invalid", text, {"path": error.path} if error.path else {})
        case Collision() | StorageError():
            return Outcome("config-invalid", text)
        case NotFound():
            return Outcome("not-found", text, {"kind": error.kind, "name": error.name})
        case PolicyDenied():
            return Outcome("denied", text, {"rule": error.rule})
        case Unauthorized():
            return Outcome("needs-auth", text, {"server": error.server})
        case NotSent() | UpstreamTimeout():
            return Outcome("unreachable", text, {"server": error.server})
        case Rejected():
            return Outcome("tool-error", text, {"server": error.server, "rpcCode": error.code})
        case GatewayError():
            return Outcome("tool-error", text)
        case _:
            return None
