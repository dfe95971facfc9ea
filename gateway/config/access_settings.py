"""Pydantic models of `access` in `gateway.json`: roles of callers, and files with Cedar policies.

They define only shapes and defaults; the package `access` decides what a caller may use.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from gateway.config.base_models import Model
from gateway.json_types import JsonObject


class AccessMember(Model):
    """Callers that have a role: those for which every key of this entry matches."""

    group: str | None = None
    """Group of the user, as the access token names it."""
    issuer: str | None = None
    """Issuer of the access token (an https URL). Write it with `subject`, and with other keys if users of several issuers sign in."""
    subject: str | None = None
    """The user at `issuer` (`sub` of the access token)."""
    client: str | None = None
    """OAuth client that the access token was issued to (`client_id`)."""
    tenant: str | None = None
    """Tenant of the user, as the access token names it."""
    key: str | None = None
    """Name or id of an API key (`moongate keys list`). Stands alone."""

    @model_validator(mode="after")
    def _names_callers(self) -> AccessMember:
        others = (self.group, self.subject, self.client, self.tenant)
        if self.key is not None and any(value is not None for value in (*others, self.issuer)):
            raise ValueError("`key` stands alone, because an API key has no group, issuer, subject, client or tenant")
        if self.key is None and not any(others):
            raise ValueError("names no callers; write `group`, `issuer` and `subject`, `client`, `tenant` or `key`")
        if self.subject is not None and self.issuer is None:
            raise ValueError("`subject` needs `issuer`, because two issuers may give the same subject to different users")
        return self


class AccessRole(Model):
    """What the callers with this role may use. A caller may have several roles and may use what one of them allows and none denies."""

    members: list[AccessMember] = Field(default_factory=list[AccessMember])
    """The callers that have the role: those that match one of these entries."""
    allow: list[str] = Field(default_factory=list)
    """Patterns of what the callers may use: `SOURCE`, `SOURCE/NAME` or `KIND:SOURCE/NAME` with globs, as in scopes of API keys. `KIND` is
    `tools`, `resources`, `prompts` or `skills`."""
    deny: list[str] = Field(default_factory=list)
    """Patterns of what the callers may not use, even if this or another role allows it."""
    arguments: dict[str, dict[str, JsonObject]] = Field(default_factory=dict)
    """Rules for arguments of tools that this role allows, in the form of `arguments` in policies: pattern `SOURCE/NAME` → argument → JSON
    Schema. They have an effect unless another role allows the same call.
    """
    approval: list[str] = Field(default_factory=list)
    """Patterns of tools whose calls a person must approve, in addition to the `approval` of policies."""
    operator: bool = False
    """`true`: the callers may approve or decline calls of others, as an API key with the scope `admin` may."""


class AccessSettings(Model):
    """Roles and Cedar policies: who may use which tools, resources, prompts, skills, agents and workflows.

    Left out, every caller may use what its API key or access token allows. The local user may always use everything.
    """

    roles: dict[str, AccessRole] = Field(default_factory=dict)
    """Roles, by name."""
    default: str | None = None
    """Role of callers that no role names. Left out: these callers may use nothing."""
    cedar: list[str] = Field(default_factory=list)
    """Files or globs of Cedar policies, relative to the configuration file. They must permit each call and, if there are roles, a role must
    allow it too. Needs the extra `cedar`.
    """

    @model_validator(mode="after")
    def _default_exists(self) -> AccessSettings:
        if self.default is not None and self.default not in self.roles:
            raise ValueError(f"default: {self.default!r} is not a role; write the name of a role under `roles`")
        return self
