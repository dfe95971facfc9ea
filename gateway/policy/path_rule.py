"""Decides whether a path is surely inside given folders, and whether a server may resolve a URI to another place than its text suggests.

An example of such a URI is `file:///docs/../secret.txt`: its text suggests a file in `docs`.

`judge_path` decides about paths, for the keyword `within`. This is one of Moongate's own keywords ("rule words") in rules for arguments;
`policy.rule_words` compiles and uses it. `judge_uri` decides about URIs, for `policy.scopes`, `policy.skill_policy` and
`catalog.uris`. All functions are pure.

A server reads a path by rules that the gateway cannot see: POSIX or Windows, percent-encoded or not, expanded by a shell or normalised by a
file system. A path passes only if every such reading stays inside the folder; an ambiguous spelling is rejected. Symbolic links, hard links
and mount points are on the server's disk and are not visible here.

Decided: `..` is rejected even if it stays inside, because `docs/link/../x` leaves the folder if `link` is a symbolic link.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import cast
from urllib.parse import unquote

from gateway.json_types import JsonValue

MAX_PATH_CHARACTERS = 4_096
"""Maximum number of characters of a path or URI: `PATH_MAX` of Linux, because longer paths cannot be opened by name."""

_RESERVED = re.compile(r"""[\x00-\x1f\x7f-\x9f\\:*?<>|"{}`]""")
"""Matches a character that separates, expands or ends a path on some platform."""

_INVISIBLE = "has a control or invisible character"
_RESERVED_REASONS = {
    "\\": "has a backslash; separate names by '/'",
    ":": "has a ':', which marks a URL, a drive or a file stream",
    **dict.fromkeys('*?<>|"{}`', "has a wildcard, brace, quote or redirection character"),
}

_ENCODED = re.compile(r"%(?:[0-9A-Fa-f]{2}|[uU][0-9A-Fa-f]{4})")

_WIDE_ENCODED = re.compile(r"%[uU][0-9A-Fa-f]{4}")

_SHORT = re.compile(r"~[0-9]+(?:\.|\Z)")
"""Matches the end of a Windows 8.3 name (`PROGRA~1`), which is a second name of a file with a longer name."""

_QUOTED_DOTS = ".'!^,[]()-@+$"
"""All characters of path segments that a shell may reduce to `..`, such as `'..'` or `.[.]`."""

_DOT_PATTERN = re.compile(r"\.[^/]*[\[(]")
"""Matches a path segment that starts with a dot and may match `..` as a shell pattern, such as `.[!a]`."""

_DEVICES = frozenset({"con", "prn", "aux", "nul", "conin$", "conout$", "clock$", *(f"{n}{i}" for n in ("com", "lpt") for i in range(10))})
"""File names that Windows opens as a device in every folder, with any extension."""

_LOOK_ALIKES = str.maketrans({
    **dict.fromkeys("\u1735\u2041\u2044\u2215\u2571\u27cb\u29f8\u2afb\u2afd\u3033\u31d3\U0001d23a", "/"),
    **dict.fromkeys("\u00a5\u20a9\u2216\u244a\u2572\u27cd\u29f5\u29f9\u2cf9\u31d4\U0001d20f\U0001d23b", "\\"),
    **dict.fromkeys("\u0701\u0702\u3002\ua4f8\ua4fb\ua60e\U00010a50\U0001d16d", "."),
    "\ua4fa": "..",
    **dict.fromkeys("\u02d0\u02f8\u0589\u05c3\u1803\u1809\u2236\ua4fd\ua789", ":"),
    **dict.fromkeys("\u02dc\u223c", "~"),
    **{chr(code): None for code in (0x34F, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))},
})  # fmt: skip
"""Character → path character (`/`, `\\`, `.`, `:` or `~`) for which a code page or a reader may mistake it; `None` if it may be dropped.

Contains the characters of UTS 39 that NFKC does not change, except letters and digits of scripts in use. Also contains the variation
selectors, because file systems may drop them. The yen and won signs are the backslash of the Japanese and Korean code pages; the
ideographic full stop separates labels of host names like a dot (UTS 46).
"""

_DRIVE = re.compile(r"([A-Za-z]):(?=[\\/])")
"""Matches the start of an absolute Windows path, such as `C:/`."""


@dataclass(frozen=True, slots=True)
class Folder:
    """One folder in the value of the rule keyword `within`, which requires that an argument is a path inside this folder."""

    written: str
    """The folder as the operator wrote it."""
    segments: list[str]
    """Names of the folders on the path to this folder, outermost first, and its own name at the end. `.` is left out."""
    root: str
    """Root of the path: `""` for a relative path, `"/"`, or the lower-case letter of a Windows drive."""


@dataclass(frozen=True, slots=True)
class PathRule:
    """The compiled value of the rule keyword `within`, which requires that an argument is a path inside one of these folders."""

    folders: tuple[Folder, ...]

    def __str__(self) -> str:
        return " or ".join(repr(folder.written) for folder in self.folders)


def read_path_rule(written: JsonValue) -> PathRule:
    """Compile the value of the rule keyword `within`: a folder, or a list of folders.

    Raises:
        ValueError: The value has another form, or a folder is ambiguous; the message is the end of a sentence whose subject is the rule.
    """
    names = [written] if isinstance(written, str) else written
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in cast("list[JsonValue]", names)):
        raise ValueError("needs a folder or a list of folders under `within`, e.g. \"docs/\"")
    return PathRule(tuple(_read_folder(name) for name in cast("list[str]", names)))


def _read_folder(name: str) -> Folder:
    root, _, segments = _split(name)
    folder = Folder(name, segments, root)
    problem = judge_path(name, PathRule((folder,)))
    if problem is not None:
        raise ValueError(f"has a folder under `within` that {problem}; write an absolute path, or one relative to the server's folder")
    return folder


def judge_path(value: str, rule: PathRule) -> str | None:
    """Return why a path is rejected, or `None` if it is inside one of the rule's folders in every way in which a server may read it.

    The reason is the end of a sentence whose subject is the path. It never contains the path.
    """
    if len(value) > MAX_PATH_CHARACTERS:
        return f"has more than {MAX_PATH_CHARACTERS} characters"
    problem = _judge_reading(value, rule)
    if problem is None and not value.isascii():
        if not value.isprintable() and any(not c.isprintable() and unicodedata.category(c) != "Zs" for c in value):
            return _INVISIBLE
        problem = _judge_reading(unicodedata.normalize("NFKC", value).translate(_LOOK_ALIKES), rule)
        return None if problem is None else f"has look-alike characters; read as plain ones, it {problem}"
    return problem


def _judge_reading(value: str, rule: PathRule) -> str | None:
    root, rest, segments = _split(value)
    problem = _unclear(root, rest, segments)
    if problem is not None:
        return problem
    for folder in rule.folders:
        if folder.root == root and segments[: len(folder.segments)] == folder.segments:
            return None
    if root and not any(folder.root for folder in rule.folders):
        return "is absolute; write it relative"
    return "is outside"


def _split(path: str) -> tuple[str, str, list[str]]:
    """Split a path into its root, the rest with `/` as separator, and the names between the separators, without `.`.

    The root is `""`, `"/"` or a drive letter. Backslashes are separators only after a drive letter.
    """
    drive = _DRIVE.match(path)
    if drive is not None:
        root, rest = drive.group(1).lower(), path[2:].replace("\\", "/")
    else:
        root, rest = ("/" if path.startswith("/") else ""), path
    return root, rest, [segment for segment in rest.split("/") if segment not in ("", ".")]


def _unclear(root: str, rest: str, segments: list[str]) -> str | None:
    """Return why a program may interpret a path differently from this check, or `None`.

    For example, a shell expands `~/a` to a path in the home folder. The text is the end of a sentence whose subject is the path.
    `root`, `rest` and `segments` are the parts of the path that `_split` returns.
    """
    if not rest:
        return "is empty"
    reserved = _RESERVED.search(rest)
    if reserved is not None:
        return _RESERVED_REASONS.get(reserved.group(), _INVISIBLE)
    if "%" in rest and _ENCODED.search(rest):
        return "has a percent-encoded character; write the character itself"
    if rest.startswith("//") or (not root and segments and segments[0][0] in "~$%-"):
        return "starts with '~', '$', '%', '-' or '//'"
    for segment in segments:
        if _is_dots(segment) or (segment[0] == "." and _DOT_PATTERN.match(segment)):
            return "has a name that starts with '..' or stands for it"
        if segment[-1] == "." or segment[0].isspace() or segment[-1].isspace():
            return "has a name that starts with a space, or ends with a dot or a space"
        if segment.partition(".")[0].rstrip().lower() in _DEVICES:
            return "has a name that Windows reserves for a device"
        if "~" in segment and _SHORT.search(segment):
            return "has a Windows short name such as 'NAME~1'"
    return None


def _is_dots(segment: str) -> bool:
    """Return whether a segment of a path starts with `..`, or a shell or file system may read it as `.` or `..`."""
    return segment.startswith("..") or ("." in segment and not segment.strip(_QUOTED_DOTS))


# -- URIs ----------------------------------------------------------------------------------------------------------

MAX_URI_DECODINGS = 8
"""Maximum number of times that a URI is percent-decoded; a URI with more levels of encoding is rejected."""

_URI_SEPARATORS = re.compile(r"[/\\?#;&=,]")
"""Matches a character that ends a path segment for some servers: a slash or backslash, or the start of a parameter (`..;v=1`) or query."""

_EMPTY_SEGMENT = re.compile(r"(?<!:)//")
"""Matches two slashes, but not in `://`. A server that joins the text after the first slash to a folder gets an absolute path."""


def judge_uri(uri: str) -> str | None:
    """Return why a server may resolve a URI to another place than its text suggests, or `None`.

    A rule with a glob such as `file:///docs/*` compares texts and so accepts `file:///docs/../secret.txt`, but a server resolves the `..`,
    in any encoding. The reason is the end of a sentence whose subject is the URI.
    """
    if len(uri) > MAX_PATH_CHARACTERS:
        return f"has more than {MAX_PATH_CHARACTERS} characters"
    for _ in range(MAX_URI_DECODINGS):
        problem = _judge_uri_reading(uri)
        if problem is None and not uri.isascii():
            problem = _judge_uri_reading(unicodedata.normalize("NFKC", uri).translate(_LOOK_ALIKES))
        decoded = unquote(uri, errors="surrogateescape")
        if problem is not None or decoded == uri:
            return problem
        uri = decoded
    return "is percent-encoded too often"


def _judge_uri_reading(uri: str) -> str | None:
    if not uri.isprintable() and any(not c.isprintable() and unicodedata.category(c) != "Zs" for c in uri):
        return _INVISIBLE
    if _WIDE_ENCODED.search(uri):
        return "has a character encoded as %uXXXX"
    scheme, colon, rest = uri.partition(":")
    path = (rest if colon and "/" not in scheme else uri).replace("\\", "/")
    if _EMPTY_SEGMENT.search(path.partition("?")[0].removeprefix("//")):
        return "has an empty segment ('//')"
    if any(segment.strip() and _is_dots(segment.strip()) for segment in _URI_SEPARATORS.split(path)):
        return "has a segment that is '.' or '..', or stands for it"
    return None
