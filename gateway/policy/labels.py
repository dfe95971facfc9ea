"""Labels that say whether content is trusted and who may see it, and the decisions about tool calls that follow from the labels.

After outside content has reached a model, the model's calls may follow that content instead of the user (indirect prompt injection). So one
label summarises everything that a conversation has received. The label can only become stricter, and it decides whether the model may call
tools that act on the world (sinks). The functions are pure; `gateway.security` provides the middleware that uses them.
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
    """Label that says whether an outsider (anybody but the user and trusted authors) can have written the content."""

    TRUSTED = "trusted"
    UNTRUSTED = "untrusted"


class ConfidentialityLabel(StrEnum):
    """Label that says who may see the content, from least to most restricted."""

    PUBLIC = "public"
    PRIVATE = "private"
    USER_IDENTITY = "user_identity"
    """Only the user whom the content concerns may see it."""


_RANK = {ConfidentialityLabel.PUBLIC: 0, ConfidentialityLabel.PRIVATE: 1, ConfidentialityLabel.USER_IDENTITY: 2}


@dataclass(frozen=True, slots=True)
class ContentLabel:
    """Integrity and confidentiality of one piece of content, or of everything that a conversation has received."""

    integrity: IntegrityLabel = IntegrityLabel.TRUSTED
    confidentiality: ConfidentialityLabel = ConfidentialityLabel.PUBLIC
    metadata: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))

    def __post_init__(self) -> None:
        object.__setattr__(self, "integrity", IntegrityLabel(self.integrity))
        object.__setattr__(self, "confidentiality", ConfidentialityLabel(self.confidentiality))

    def is_trusted(self) -> bool:
        """Return whether the content is trusted: no outsider can have written it."""
        return self.integrity is IntegrityLabel.TRUSTED

    def is_public(self) -> bool:
        """Return whether everybody may see the content."""
        return self.confidentiality is ConfidentialityLabel.PUBLIC

    def to_dict(self) -> JsonObject:
        """Return the label as a JSON object."""
        data: JsonObject = {"integrity": self.integrity.value, "confidentiality": self.confidentiality.value}
        return {**data, "metadata": dict(self.metadata)} if self.metadata else data

    @classmethod
    def from_dict(cls, data: JsonMapping) -> ContentLabel:
        """Create a label from the JSON object `data` that `to_dict` returned.

        Raises:
            ValueError: `integrity` or `confidentiality` has an unknown value.
        """
        integrity, confidentiality = data.get("integrity", "trusted"), data.get("confidentiality", "public")
        return cls(IntegrityLabel(integrity), ConfidentialityLabel(confidentiality), data.get("metadata") or {})


def combine_labels(*labels: ContentLabel) -> ContentLabel:
    """Combine labels into one: trusted only if all `labels` are trusted, and as confidential as the most confidential label.

    The metadata of all labels is merged; later labels take precedence.
    """
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
    """Return whether content with the label `context_label` may reach a receiver whose limit of confidentiality is `max_allowed`."""
    return _RANK[context_label.confidentiality] <= _RANK[max_allowed]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRules:
    """Rules that say which tools return untrusted or confidential results, and which tools may run after such content.

    Each list contains globs over tool names or `<source>/<tool>`. The defaults apply to tools that no glob matches and whose author
    declares nothing.
    """

    trusted: Sequence[str] = ()
    """Tools whose results no outsider can have written."""
    untrusted: Sequence[str] = ()
    """Tools whose results an outsider may have written; takes precedence over `trusted`."""
    private: Sequence[str] = ()
    """Tools whose results have the label `private`, whatever the tool's author declares."""
    sinks: Sequence[str] | None = None
    """Tools that act on the world, which may not be called after untrusted content unless they accept it. `None`: all.

    If the list is given, tools whose author declares `sink` count too."""
    accepts_untrusted: Sequence[str] = ()
    """Sinks (tools that act on the world) that may be called after untrusted content, even if their author does not declare this."""
    public_sinks: Sequence[str] = ()
    """Tools that may not be called after content that is not public, because they may send it out."""
    default_integrity: IntegrityLabel = IntegrityLabel.UNTRUSTED
    """Integrity of the results of tools about which neither a list nor the tool's author says anything."""
    default_confidentiality: ConfidentialityLabel = ConfidentialityLabel.PUBLIC
    """Confidentiality of the results of tools about which neither a list nor the tool's author says anything."""


@dataclass(frozen=True, slots=True)
class FlowTool:
    """Facts about a tool that determine whether it may be called and how its results are labelled: names, and its author's declarations."""

    name: str
    source: str | None = None
    """Id of the tool's source (a server's name, or `agent`, `function` and so on); `None` outside a gateway."""
    native_name: str | None = None
    properties: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """Declarations of the tool's author, if the author is trusted: `source_integrity`, `confidentiality`, `sink`, `accepts_untrusted`,
    `max_allowed_confidentiality`."""

    def fits(self, globs: Sequence[str]) -> bool:
        """Return whether one of the globs matches the tool's name or `<source>/<native name>` (its name at its source)."""
        names = [self.name] if self.source is None else [self.name, f"{self.source}/{self.native_name or self.name}"]
        return any(fnmatchcase(name, glob) for glob in globs for name in names)


def label_result(tool: FlowTool, rules: FlowRules) -> ContentLabel:
    """Return the label for a tool's result by the rules and the tool's declarations. Used for results without a label of their own."""
    if tool.fits(rules.untrusted):
        integrity = IntegrityLabel.UNTRUSTED
    elif tool.fits(rules.trusted):
        integrity = IntegrityLabel.TRUSTED
    else:
        integrity = IntegrityLabel(tool.properties.get("source_integrity") or rules.default_integrity)
    own = tool.properties.get("confidentiality") or rules.default_confidentiality
    return ContentLabel(integrity, ConfidentialityLabel.PRIVATE if tool.fits(rules.private) else ConfidentialityLabel(own))


def judge_flow(tool: FlowTool, rules: FlowRules, context: ContentLabel) -> Reject | None:
    """Return why a tool may not be called in a conversation whose content has the label `context`, or `None` if it may."""
    accepts = tool.fits(rules.accepts_untrusted) or bool(tool.properties.get("accepts_untrusted"))
    is_sink = True if rules.sinks is None else tool.fits(rules.sinks) or bool(tool.properties.get("sink"))
    if not context.is_trusted() and is_sink and not accepts:
        return Reject("security.untrusted", "This conversation contains content that an outsider may have written.")
    limit = ConfidentialityLabel.PUBLIC if tool.fits(rules.public_sinks) else tool.properties.get("max_allowed_confidentiality")
    if limit is not None and not check_confidentiality_allowed(context, ConfidentialityLabel(limit)):
        return Reject("security.confidential", f"This conversation contains {context.confidentiality.value} content.")
    return None
