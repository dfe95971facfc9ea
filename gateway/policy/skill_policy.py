"""Decides by their paths which skills of a source are served, and decides which entries of a server's list are valid skills.

The URI of each file of a skill is judged too, so that clients cannot read the files of a skill that is not served. The functions are pure.
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
"""Matches a valid name of a skill.

Only ASCII is accepted, because all known clients but one read the Agent Skills specification in this way.
"""

MAX_NAME_CHARS = 64
"""Maximum number of characters of a skill's name in the Agent Skills specification."""

MAX_SKILL_FILES = 512
"""Maximum number of files in one skill, recommended for servers by SEP-2640 (limits)."""

MAX_SKILL_BYTES = 16 * 1024 * 1024
"""Maximum total bytes of the files of one skill, recommended for servers by SEP-2640 (limits)."""

MAX_DECODINGS = 32
"""Maximum number of times that the path or name of a skill's file is percent-decoded, to find every path that a server may read in it."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PARAMETERS = re.compile(r"[;?#][^/]*")
_URI_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:")


def judge_skill(path: str, rules: SkillFilter) -> bool:
    """Return whether the skill at `path` (`pdf`, `team/pdf`) is served to clients.

    `rules` are `skills.allow` and `skills.deny` of the policy. A glob must match the whole path, not only a part of it.
    """
    return judge_tool(path, rules.allow, rules.deny)


def judge_skill_uri(uri: str, rules: SkillFilter) -> bool:
    """Return whether a client may read the resource `uri`: a file of a served skill, or a resource that belongs to no skill.

    A file is refused if `rules` deny one of the folders that contain it. If `rules` have `allow`, it must allow at least one of these
    folders: a file of an allowed skill is allowed even if it also belongs to another skill inside the allowed one. Unless `rules` are
    empty, a URI that a server could resolve to another skill is rejected.
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
    """Return every folder that contains `path`, outermost first, and `path` itself at the end."""
    parts = path.rstrip("/").split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _readings(path: str) -> set[str]:
    """Return `path` in all forms in which a server may interpret it: as written, percent-decoded, in lower case, without parameters.

    `path` is a `skill://` URI without its scheme. A user and a port before the first slash, and a query, are removed too.
    """
    found = {path}
    for _ in range(MAX_DECODINGS):
        authority, slash, rest = path.replace("\\", "/").casefold().lstrip("/").partition("/")
        found.add(_PARAMETERS.sub("", authority.rpartition("@")[2].partition(":")[0] + slash + rest))
        if (decoded := unquote(path)) == path:
            break
        path = decoded
    return found


def judge_entry(entry: JsonMapping) -> bool:
    """Return whether an entry in a server's response to `skills/list` conforms to SEP-2640.

    Clients do not see an entry that does not conform, because hosts would reject it.
    """
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
    """Return whether a value is a valid name of a skill by the Agent Skills specification."""
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
    """Return whether the name (relative path) of a skill's file stays inside the skill's folder, however often it is percent-decoded."""
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
