"""`ScheduledCall`: an entry of `tasks.schedules` in the configuration, a tool call that Temporal starts at set times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from gateway.config.base_models import Model
from gateway.json_types import JsonValue

SCHEDULE_NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}"
"""Regular expression for the name of a schedule. It has no dot, because a dot separates it from the task queue in the id at Temporal."""

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")

_FIELDS: Sequence[tuple[str, int, int, Sequence[str]]] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)
"""The fields of a cron expression in order: name, lowest and highest number, and the words for the numbers from the lowest."""

_SHORT_FORMS = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")

_PART = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/(\d+))?")
"""Matches one part of a field of a cron expression: `*`, a value or a range, and a step. Parts are separated by commas."""


class ScheduledCall(Model):
    """A tool call that Temporal starts at set times. It runs as a task, and passes all policies like a call of the owner of `key`."""

    tool: Annotated[str, Field(min_length=1)]
    """Name of the tool, as clients see it, such as `workflow__page-review`."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of the call. They stay in this file and in the gateway's database; Temporal does not get them."""
    cron: str | list[str] | None = None
    """When the call starts, as a cron expression with five fields (`0 3 * * *`) or one of `@hourly`, `@daily`, `@weekly`, `@monthly` and
    `@yearly`; a list for several. Write this or `everySeconds`.
    """
    every_seconds: float | None = Field(default=None, ge=1, le=31_536_000)
    """Seconds from one start to the next, counted from 1970-01-01 UTC and not from the start of the gateway."""
    time_zone: Annotated[str, Field(min_length=1)] | None = None
    """Time zone of `cron`, such as `Europe/Berlin`. Left out: UTC."""
    key: Annotated[str, Field(min_length=1)] | None = None
    """Name or id of the API key with which the call is made: its scopes apply, and it owns the task. If several keys have the name, the
    newest valid key counts. Left out: the local user, which is possible only while the gateway has no API keys.
    """
    enabled: bool = True
    """`false`: the schedule is removed from Temporal, and its entry stays here."""

    @property
    def crons(self) -> list[str]:
        """The cron expressions of this entry."""
        return [] if self.cron is None else [self.cron] if isinstance(self.cron, str) else self.cron

    @field_validator("cron")
    @classmethod
    def _cron(cls, value: str | list[str] | None) -> str | list[str] | None:
        written = [value] if isinstance(value, str) else value
        if written == []:
            raise ValueError("must not be empty; write a cron expression, or `everySeconds`")
        for cron in written or ():
            if (problem := _cron_problem(cron)) is not None:
                raise ValueError(f"{cron!r} is not a cron expression: {problem}")
        return value

    @field_validator("time_zone")
    @classmethod
    def _time_zone(cls, value: str | None) -> str | None:
        if value is None:
            return None
        from zoneinfo import available_timezones

        # A machine without a time zone database cannot check the name; then Temporal checks it when the schedule is created.
        if (known := available_timezones()) and value not in known:
            raise ValueError(f"{value!r} is not a time zone of the IANA database; write a name such as 'Europe/Berlin'")
        return value

    @model_validator(mode="after")
    def _times(self) -> ScheduledCall:
        if (self.cron is None) == (self.every_seconds is None):
            raise ValueError("needs `cron` or `everySeconds`, and not both")
        if self.time_zone is not None and self.cron is None:
            raise ValueError("`timeZone` has an effect only with `cron`; remove it")
        return self


def _cron_problem(cron: str) -> str | None:
    """Return what is wrong with a cron expression, as the end of a sentence; `None` if nothing is."""
    if cron.startswith("@"):
        return None if cron in _SHORT_FORMS else f"the short forms are {', '.join(_SHORT_FORMS)}"
    written = cron.split()
    if len(written) != len(_FIELDS):
        return f"it has {len(written)} fields; write minute, hour, day of the month, month and day of the week, such as '0 3 * * *'"
    for text, (name, lowest, highest, words) in zip(written, _FIELDS, strict=True):
        if not all(_is_part(part, lowest, highest, words) for part in text.split(",")):
            named = f", or {words[0]} to {words[-1]}" if words else ""
            return f"the {name} is {text!r}; write *, numbers from {lowest} to {highest}{named}, ranges (1-5) or steps (*/15)"
    return None


def _is_part(part: str, lowest: int, highest: int, words: Sequence[str]) -> bool:
    """Return whether a text is a valid part of a field of a cron expression whose numbers go from `lowest` to `highest`."""
    match = _PART.fullmatch(part)
    if match is None or (match[3] is not None and not match[3].strip("0")):
        return False
    numbers = [_number(text, lowest, words) for text in match.group(1, 2) if text is not None]
    return all(lowest <= number <= highest for number in numbers) and numbers == sorted(numbers)


def _number(text: str, lowest: int, words: Sequence[str]) -> int:
    """Return the number that a text of a cron expression means; -1 if it means none."""
    if text.lower() in words:
        return words.index(text.lower()) + lowest
    return int(text) if len(text) <= 2 and text.isascii() and text.isdigit() else -1
