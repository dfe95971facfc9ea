"""Labels on content, and what may follow from them: how far a result can be trusted, and who may see it. Pure decisions.

After content from outside has reached a model, what the model asks for may be that content's wish and not the user's
(indirect prompt injection). So what a conversation has taken in is remembered as one label, which only ever gets worse,
and a tool that acts on the world (a sink) is judged by it. `gateway.security` has the middleware that asks here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import cast

from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.decision import Reject


class IntegrityLabel(StrEnum):
    """Whether content can be the work of somebody else."""

    TRUSTED = "trusted"
    UNTRUSTED = "untrusted"


class ConfidentialityLabel(StrEnum):
    """Who may see content, from everybody on."""

    PUBLIC = "public"
    PRIVATE = "private"
    USER_IDENTITY = "user_identity"
    """Only the user it is about."""


_RANK = {ConfidentialityLabel.PUBLIC: 0, ConfidentialityLabel.PRIVATE: 1, ConfidentialityLabel.USER_IDENTITY: 2}


@dataclass(frozen=True, slots=True)
class ContentLabel:
    """The label of a piece of content, or of everything a conversation has taken in."""

    integrity: IntegrityLabel = IntegrityLabel.TRUSTED
    confidentiality: ConfidentialityLabel = ConfidentialityLabel.PUBLIC
    metadata: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))

    def __post_init__(self) -> None:
        object.__setattr__(self, "integrity", IntegrityLabel(self.integrity))
        object.__setattr__(self, "confidentiality", ConfidentialityLabel(self.confidentiality))

    def is_trusted(self) -> bool:
        """Whether it is the user's or our own."""
        return self.integrity is IntegrityLabel.TRUSTED

    def is_public(self) -> bool:
        """Whether everybody may see it."""
        return self.confidentiality is ConfidentialityLabel.PUBLIC

    def to_dict(self) -> JsonObject:
        """JSON form."""
        data: JsonObject = {"integrity": self.integrity.value, "confidentiality": self.confidentiality.value}
        return {**data, "metadata": dict(self.metadata)} if self.metadata else data

    @classmethod
    def from_dict(cls, data: JsonMapping) -> ContentLabel:
        """The inverse of `to_dict`.

        Raises:
            ValueError: A value is no label.
        """
        integrity, confidentiality = data.get("integrity", "trusted"), data.get("confidentiality", "public")
        return cls(IntegrityLabel(integrity), ConfidentialityLabel(confidentiality), data.get("metadata") or {})


def combine_labels(*labels: ContentLabel) -> ContentLabel:
    """The label of several contents together: trusted only if all are, and as confidential as the most confidential."""
    metadata: JsonObject = {}
    for label in labels:
        metadata.update(label.metadata)
    trusted = all(label.is_trusted() for label in labels)
    return ContentLabel(
        IntegrityLabel.TRUSTED if trusted else IntegrityLabel.UNTRUSTED,
        max((label.confidentiality for label in labels), key=_RANK.__getitem__, default=ConfidentialityLabel.PUBLIC),
        metadata,
    )


def check_confidentiality_allowed(context_label: ContentLabel, max_allowed: ConfidentialityLabel) -> bool:
    """Whether content of this label may go where at most `max_allowed` may go."""
    return _RANK[context_label.confidentiality] <= _RANK[max_allowed]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRules:
    """What tools give and do, by globs over `<source>/<tool>` or the tool's name. What is not named is judged by the defaults."""

    trusted: Sequence[str] = ()
    """Tools whose results nobody outside can have written."""
    untrusted: Sequence[str] = ()
    """Tools whose results somebody outside may have written; wins over `trusted`."""
    private: Sequence[str] = ()
    """Tools whose results are confidential."""
    sinks: Sequence[str] | None = None
    """Tools that act on the world. `None`: all that do not say `accepts_untrusted`."""
    accepts_untrusted: Sequence[str] = ()
    """Tools that may be called after untrusted content."""
    public_sinks: Sequence[str] = ()
    """Tools through which only public content may leave."""
    default_integrity: IntegrityLabel = IntegrityLabel.UNTRUSTED
    default_confidentiality: ConfidentialityLabel = ConfidentialityLabel.PUBLIC


@dataclass(frozen=True, slots=True)
class FlowTool:
    """A tool, as far as flows are concerned."""

    name: str
    source: str | None = None
    """The server or kind of source; `None` outside a gateway."""
    native_name: str | None = None
    properties: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """What the tool says of itself: `source_integrity`, `confidentiality`, `sink`, `accepts_untrusted`,
    `max_allowed_confidentiality`. Only for tools whose author we trust."""

    def fits(self, globs: Sequence[str]) -> bool:
        """Whether one of the globs names the tool."""
        names = [self.name] if self.source is None else [self.name, f"{self.source}/{self.native_name or self.name}"]
        return any(fnmatchcase(name, glob) for glob in globs for name in names)


def label_result(tool: FlowTool, rules: FlowRules) -> ContentLabel:
    """The label of what a tool gives, where the result does not carry one of its own."""
    if tool.fits(rules.untrusted):
        integrity = IntegrityLabel.UNTRUSTED
    elif tool.fits(rules.trusted):
        integrity = IntegrityLabel.TRUSTED
    else:
        integrity = IntegrityLabel(tool.properties.get("source_integrity") or rules.default_integrity)
    own = tool.properties.get("confidentiality") or rules.default_confidentiality
    return ContentLabel(integrity, ConfidentialityLabel.PRIVATE if tool.fits(rules.private) else ConfidentialityLabel(own))


def judge_flow(tool: FlowTool, rules: FlowRules, context: ContentLabel) -> Reject | None:
    """Whether a tool may be called in a conversation that has taken in content of this label; `None` means yes."""
    accepts = tool.fits(rules.accepts_untrusted) or bool(tool.properties.get("accepts_untrusted"))
    is_sink = True if rules.sinks is None else tool.fits(rules.sinks) or bool(tool.properties.get("sink"))
    if not context.is_trusted() and is_sink and not accepts:
        return Reject("security.untrusted", "This conversation has taken in content that somebody outside may have written.")
    limit = ConfidentialityLabel.PUBLIC if tool.fits(rules.public_sinks) else tool.properties.get("max_allowed_confidentiality")
    if limit is not None and not check_confidentiality_allowed(context, ConfidentialityLabel(limit)):
        return Reject("security.confidential", f"This conversation has taken in {context.confidentiality.value} content.")
    return None
