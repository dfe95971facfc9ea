"""`AuditSettings`: the section `audit` of `gateway.json`, which says what the audit log records of allowed calls and of arguments."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from gateway.config.base_models import Model

Fraction = Annotated[float, Field(ge=0, le=1, strict=True)]
ArgumentForm = Literal["keep", "hash", "omit"]
"""What the audit log has of an argument: its value, a keyed digest of its value, or nothing."""


class AuditSettings(Model):
    """What the audit log records besides refusals, approvals and other decisions, which it always has."""

    calls: Literal["authenticated", "all", "none"] = "authenticated"
    """The callers whose allowed calls and reads are recorded. `authenticated`: callers with an API key or an access token. `all`: also the
    local user.
    """
    read_sample: Fraction = 1
    """Fraction of the successful reads of resources, prompts, completions and task states that are recorded. Failed reads are always
    recorded.
    """
    call_sample: dict[str, Fraction] = Field(default_factory=dict)
    """Fraction of the successful calls that are recorded, by pattern `<source>/<tool>`, such as `docs/search_*`. The first pattern that
    matches a tool applies; calls of other tools are all recorded.
    """
    arguments: dict[str, dict[str, ArgumentForm]] = Field(default_factory=dict)
    """What is recorded of arguments, by pattern `<source>/<tool>` and then by argument (or a pattern such as `*`): `keep` (the value),
    `hash` (a keyed digest) or `omit`. The first pattern that matches applies. Arguments that no pattern matches are left out.
    """
    max_entries: int = Field(default=5_000_000, ge=1000)
    """Maximum number of entries of the audit log. The oldest are deleted, also before `storage.auditDays`."""
    otlp: bool = False
    """Also send each stored entry as a log record to the OTLP endpoint of the `OTEL_EXPORTER_OTLP_…` variables. Needs the extra
    `telemetry`.
    """

    @field_validator("call_sample", "arguments")
    @classmethod
    def _patterns(cls, value: dict[str, object]) -> dict[str, object]:
        for pattern in value:
            if not all(pattern.partition("/")[::2]):
                raise ValueError(f"{pattern!r} is not a pattern of tools; write <source>/<tool>, such as docs/search_* or */*")
        return value
