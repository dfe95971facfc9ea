"""`Expectation`: a row of a file for `moongate policy test`, which says what a caller may or may not use."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from gateway.access.explanation import CallerSpec
from gateway.config.base_models import Model
from gateway.config.documents import load_yaml
from gateway.config.jsonc import parse
from gateway.errors import ConfigError
from gateway.json_types import JsonValue

MAX_FILE_BYTES = 4_194_304
"""Maximum bytes of a file with expectations."""

Expected = Literal["allow", "approval", "refuse", "hide"]
"""Expected decision: allowed; allowed after a person approved the call; refused with a reason; or hidden, as if it did not exist."""


class ExpectedCaller(Model):
    """A caller, as a file with expectations names it."""

    key: str | None = None
    """Name or id of an API key. The key need not exist: then it is a key without scopes and with this name."""
    subject: str | None = None
    """The user at `issuer`."""
    issuer: str = ""
    """Issuer of the user's access token."""
    groups: list[str] = Field(default_factory=list)
    """Groups of the user."""
    client: str = ""
    """OAuth client of the user."""
    tenant: str = ""
    """Tenant of the user."""
    scopes: list[str] | None = None
    """Scopes of the access token, or of a key that does not exist. Left out: they do not restrict the caller."""

    @model_validator(mode="after")
    def _is_one(self) -> ExpectedCaller:
        if (self.key is None) == (self.subject is None):
            raise ValueError("write either `key` or `subject`")
        return self

    def to_spec(self) -> CallerSpec:
        """Return the caller for `principal_of`."""
        text = f"key:{self.key}" if self.key is not None else str(self.subject)
        return CallerSpec(text, self.issuer, tuple(self.groups), self.client, self.tenant, self.scopes)


class Expectation(Model):
    """One row: a caller, an item, and the decision that the configuration must lead to."""

    caller: str
    """Name of the caller under `callers`."""
    tool: str | None = None
    """The tool: its name for clients, or `SOURCE/NAME`."""
    resource: str | None = None
    """The resource: `SOURCE/URI` with the URI at its source."""
    prompt: str | None = None
    """The prompt: `SOURCE/NAME`."""
    arguments: dict[str, JsonValue] | None = None
    """Arguments of the call. Left out: only the decision that depends on no arguments is tested."""
    expect: Expected
    """The decision: `allow`, `approval`, `refuse` or `hide`."""

    @model_validator(mode="after")
    def _names_one_item(self) -> Expectation:
        if sum(item is not None for item in (self.tool, self.resource, self.prompt)) != 1:
            raise ValueError("write one of `tool`, `resource` and `prompt`")
        return self

    @property
    def item(self) -> str:
        """The item as the row names it."""
        return str(self.tool or self.resource or self.prompt)


class Expectations(Model):
    """A file for `moongate policy test`: callers, and a table of the decisions about them."""

    callers: dict[str, ExpectedCaller]
    """The callers, by the names that the rows use."""
    rows: list[Expectation] = Field(min_length=1)
    """The expected decisions."""

    @model_validator(mode="after")
    def _callers_exist(self) -> Expectations:
        for number, row in enumerate(self.rows):
            if row.caller not in self.callers:
                raise ValueError(f"rows[{number}].caller: {row.caller!r} is not under `callers`")
        return self


def read_expectations(path: Path) -> Expectations:
    """Read a file with expectations: JSON with comments, or YAML if its name ends in `.yaml` or `.yml`. Blocks.

    Raises:
        ConfigError: The file cannot be read, or its content is not a table of expectations.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1).decode()
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror or 'unknown reason'}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{str(path)!r} is not UTF-8 text.") from None
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError(f"{str(path)!r} is larger than {MAX_FILE_BYTES} bytes.")
    is_yaml = path.suffix in (".yaml", ".yml")
    try:
        return Expectations.model_validate(load_yaml(text) if is_yaml else parse(text, name=path.name))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        text = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{str(path)!r} has an error{f' at {place}' if place else ''}: {text}.") from None
