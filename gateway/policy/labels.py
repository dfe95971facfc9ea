"""Labels on content: how far it is trusted, and who may see it; and the decisions that follow from labels. Pure.

After outside content has reached a model, the model's calls may follow that content instead of the user (indirect prompt injection). So
everything that a conversation has received is summarised in one label, which can only become stricter, and calls of tools that act on the
world (sinks) are judged by it. `gateway.security` contains the middleware.
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
    """Whether an outsider (anybody but the user and trusted authors) can have written content."""

    TRUSTED = "trusted"
    UNTRUSTED = "untrusted"


class ConfidentialityLabel(StrEnum):
    """Who may see content, from least to most restricted."""

    PUBLIC = "public"
    PRIVATE = "private"
    USER_IDENTITY = "user_identity"
    """Only the user whom the content concerns may see it."""


_RANK = {ConfidentialityLabel.PUBLIC: 0, ConfidentialityLabel.PRIVATE: 1, ConfidentialityLabel.USER_IDENTITY: 2}


@dataclass(frozen=True, slots=True)
class ContentLabel:
    """Integrity and confidentiality of one content, or of everything that a conversation has received."""

    integrity: IntegrityLabel = IntegrityLabel.TRUSTED
    confidentiality: ConfidentialityLabel = ConfidentialityLabel.PUBLIC
    metadata: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))

    def __post_init__(self) -> None:
        object.__setattr__(self, "integrity", IntegrityLabel(self.integrity))
        object.__setattr__(self, "confidentiality", ConfidentialityLabel(self.confidentiality))

    def is_trusted(self) -> bool:
        """Whether the content is trusted: no outsider can have written it."""
        return self.integrity is IntegrityLabel.TRUSTED

    def is_public(self) -> bool:
        """Whether everybody may see the content."""
        return self.confidentiality is ConfidentialityLabel.PUBLIC

    def to_dict(self) -> JsonObject:
        """Return the label as a JSON object."""
        data: JsonObject = {"integrity": self.integrity.value, "confidentiality": self.confidentiality.value}
        return {**data, "metadata": dict(self.metadata)} if self.metadata else data

    @classmethod
    def from_dict(cls, data: JsonMapping) -> ContentLabel:
        """Create a label from the JSON object `data` that `to_dict` returned.

        Raises:
            ValueError: A value is not a label.
        """
        integrity, confidentiality = data.get("integrity", "trusted"), data.get("confidentiality", "public")
        return cls(IntegrityLabel(integrity), ConfidentialityLabel(confidentiality), data.get("metadata") or {})


def combine_labels(*labels: ContentLabel) -> ContentLabel:
    """Combine labels: trusted only if all are, and as confidential as the most confidential."""
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
    """Return whether content with this label may be sent to a place that accepts content up to the confidentiality `max_allowed`."""
    return _RANK[context_label.confidentiality] <= _RANK[max_allowed]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRules:
    """Rules about tools' results and effects, by globs over `<source>/<tool>` or tool names. Defaults apply to other tools."""

    trusted: Sequence[str] = ()
    """Tools whose results no outsider can have written."""
    untrusted: Sequence[str] = ()
    """Tools whose results an outsider may have written; takes precedence over `trusted`."""
    private: Sequence[str] = ()
    """Tools whose results are confidential."""
    sinks: Sequence[str] | None = None
    """Tools that act on the world. `None`: all tools that do not declare `accepts_untrusted`."""
    accepts_untrusted: Sequence[str] = ()
    """Tools that may be called after untrusted content."""
    public_sinks: Sequence[str] = ()
    """Tools that may send out only public content."""
    default_integrity: IntegrityLabel = IntegrityLabel.UNTRUSTED
    default_confidentiality: ConfidentialityLabel = ConfidentialityLabel.PUBLIC


@dataclass(frozen=True, slots=True)
class FlowTool:
    """The properties of a tool by which `label_result` and `judge_flow` decide."""

    name: str
    source: str | None = None
    """Id of the tool's source (a server's name, or `agent`, `function` and so on); `None` outside a gateway."""
    native_name: str | None = None
    properties: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """Declarations of the tool's author, if the author is trusted: `source_integrity`, `confidentiality`, `sink`, `accepts_untrusted`,
    `max_allowed_confidentiality`."""

    def fits(self, globs: Sequence[str]) -> bool:
        """Return whether one of the globs matches the tool's name or `<source>/<name>`."""
        names = [self.name] if self.source is None else [self.name, f"{self.source}/{self.native_name or self.name}"]
        return any(fnmatchcase(name, glob) for glob in globs for name in names)


def label_result(tool: FlowTool, rules: FlowRules) -> ContentLabel:
    """Return the label of a tool's result that has no label of its own."""
    if tool.fits(rules.untrusted):
        integrity = IntegrityLabel.UNTRUSTED
    elif tool.fits(rules.trusted):
        integrity = IntegrityLabel.TRUSTED
    else:
        integrity = IntegrityLabel(tool.properties.get("source_integrity") or rules.default_integrity)
    own = tool.properties.get("confidentiality") or rules.default_confidentiality
    return ContentLabel(integrity, ConfidentialityLabel.PRIVATE if tool.fits(rules.private) else ConfidentialityLabel(own))


def judge_flow(tool: FlowTool, rules: FlowRules, context: ContentLabel) -> Reject | None:
    """Return why a tool may not be called in a conversation with this label, or `None`."""
    accepts = tool.fits(rules.accepts_untrusted) or bool(tool.properties.get("accepts_untrusted"))
    is_sink = True if rules.sinks is None else tool.fits(rules.sinks) or bool(tool.properties.get("sink"))
    if not context.is_trusted() and is_sink and not accepts:
        return Reject("security.untrusted", "This conversation contains content that an outsider may have written.")
    limit = ConfidentialityLabel.PUBLIC if tool.fits(rules.public_sinks) else tool.properties.get("max_allowed_confidentiality")
    if limit is not None and not check_confidentiality_allowed(context, ConfidentialityLabel(limit)):
        return Reject("security.confidential", f"This conversation contains {context.confidentiality.value} content.")
    return None
