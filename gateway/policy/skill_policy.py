"""Decides, by their paths, which skills of a source are served to any client, and which entries of a server are valid skills.

Pure. It judges a skill's own path as well as the URI of any of its files, so that a skill that is not listed cannot be read.
"""

from __future__ import annotations

import re
from typing import cast
from urllib.parse import unquote

from gateway.config.policies import SkillFilter
from gateway.json_types import JsonMapping, JsonObject, JsonValue, items_of, members_of
from gateway.policy.path_rule import judge_uri
from gateway.policy.tool_policy import judge_tool

_SCHEME = "skill://"
_MANIFEST = "/SKILL.md"

NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
"""Matches a valid skill name. Only ASCII, because all known clients but one read the specification in this way."""

MAX_NAME_CHARS = 64
"""Maximum length of a name in the Agent Skills specification."""

MAX_SKILL_FILES = 512
"""Maximum files per skill that a server should have (SEP-2640, limits)."""

MAX_SKILL_BYTES = 16 * 1024 * 1024
"""Maximum bytes per skill that a server should have (SEP-2640, limits)."""

MAX_DECODINGS = 32
"""Maximum levels of percent-encoding in a name; more are rejected."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PARAMETERS = re.compile(r"[;?#][^/]*")
_URI_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:")


def judge_skill(path: str, rules: SkillFilter) -> bool:
    """Return whether the skill at `path` (`pdf`, `team/pdf`) exists. The globs of `rules` match the whole path, as for tools."""
    return judge_tool(path, rules.allow, rules.deny)


def judge_skill_uri(uri: str, rules: SkillFilter) -> bool:
    """Return whether a URI may be served: it belongs to a skill that exists, or to no skill.

    No folder around the file may be denied, and with `allow` one of these folders must be allowed. A file of an allowed skill is allowed
    even if the skill contains another skill. If there are rules, a URI that a server could resolve to another skill is rejected.
    """
    if (rules.allow is None and not rules.deny) or uri.strip()[:6].casefold() != "skill:":
        return True
    if not uri.startswith(_SCHEME) or judge_uri(uri) is not None:
        return False
    parts = uri.removeprefix(_SCHEME).rstrip("/").split("/")
    if len(parts) == 1 and "." in parts[0]:
        return True  # `skill://index.json` belongs to no skill
    if any(not judge_tool(path, None, rules.deny) for reading in _readings(uri.removeprefix(_SCHEME)) for path in _around(reading)):
        return False
    return rules.allow is None or any(judge_tool(path, rules.allow, ()) for path in _around("/".join(parts)))


def _around(path: str) -> list[str]:
    """Return a path and every folder that contains it, outermost first."""
    parts = path.rstrip("/").split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _readings(path: str) -> set[str]:
    """Return all readings of `path` by a server: as written, decoded, in lower case, without user, port, parameters and query."""
    found = {path}
    for _ in range(MAX_DECODINGS):
        authority, slash, rest = path.replace("\\", "/").casefold().lstrip("/").partition("/")
        found.add(_PARAMETERS.sub("", authority.rpartition("@")[2].partition(":")[0] + slash + rest))
        if (decoded := unquote(path)) == path:
            break
        path = decoded
    return found


def judge_entry(entry: JsonMapping) -> bool:
    """Return whether an entry of `skills/list` conforms to SEP-2640; hosts reject an entry that does not, so clients never see it."""
    uri, frontmatter = entry.get("uri"), entry.get("frontmatter")
    if not isinstance(uri, str) or not uri.startswith(_SCHEME) or not uri.endswith(_MANIFEST) or not isinstance(frontmatter, dict):
        return False
    root = uri.removesuffix(_MANIFEST)
    fields = cast("JsonObject", frontmatter)
    name, description = fields.get("name"), fields.get("description")
    if not is_skill_name(name) or root.rpartition("/")[2] != name or not isinstance(description, str) or not description.strip():
        return False
    return entry.get("resources") == "dynamic" or _is_manifest(entry.get("resources"), root)


def is_skill_name(name: JsonValue) -> bool:
    """Return whether a name is valid by the Agent Skills specification."""
    return isinstance(name, str) and len(name) <= MAX_NAME_CHARS and NAME.fullmatch(name) is not None


def _is_manifest(resources: JsonValue, root: str) -> bool:
    listed = items_of(resources)
    paths: set[str] = set()
    left = MAX_SKILL_BYTES
    for item in listed[: MAX_SKILL_FILES + 1]:
        wire = members_of(item)
        uri, digest, size = wire.get("uri"), wire.get("digest"), wire.get("size")
        path = unquote(uri[len(root) + 1 :]) if isinstance(uri, str) and uri.startswith(f"{root}/") else ""
        if not isinstance(size, int) or isinstance(size, bool) or size < 0 or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            return False
        if path in paths or not is_safe_name(path):
            return False
        paths.add(path)
        left -= size
    return "SKILL.md" in paths and len(listed) <= MAX_SKILL_FILES and left >= 0


def is_safe_name(name: str) -> bool:
    """Return whether a file's name stays inside its skill, however often it is decoded."""
    for _ in range(MAX_DECODINGS):
        plain = name.replace("\\", "/")
        if not plain.strip() or plain.startswith("/") or _URI_SCHEME.match(plain) or "://" in plain or _UNSAFE.search(plain):
            return False
        if any(segment.strip() == ".." for segment in re.split(r"[/?#]", plain)):
            return False
        decoded = unquote(name, errors="surrogateescape")
        if decoded == name:
            return True
        name = decoded
    return False
