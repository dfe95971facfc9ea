"""Finds tools whose name looks like the name of another server's tool, or whose description mentions a tool of another server.

A hostile server could use such names and descriptions to make a model call the wrong tool. The gateway rejects nothing, because honest
servers do the same by accident; `moongate doctor` reports the tools. Names are compared as clients see them, because only these names can
confuse a model. The names at the sources are compared only if they contain letters beyond ASCII.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_LOOKS_LIKE = str.maketrans({"1": "l", "i": "l", "|": "l", "0": "o", "5": "s", "2": "z", "-": "_", ".": "_"})
_LETTERS_ALIKE = dict(
    zip(
        "\u0430\u0435\u043e\u0440\u0441\u0445\u0443\u0456\u0458\u0455\u043a\u043c\u0442\u043d\u0432\u03b1\u03bf\u03c1\u03bd\u03b9\u03ba\u03c4\u03c5\u0501\u051b\u0261",
        "aeopcxyljskmthbaopvlktudqg",
        strict=True,
    )
)
"""Cyrillic or Greek letter → Latin letter that looks like it (UTS 39 confusables, the lower-case letters of identifiers)."""

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]")
_UNMISTAKABLE = re.compile(r"[a-z0-9][_.-][a-z0-9]|[a-z][A-Z]")
"""Matches names of tools that cannot be ordinary words of a text, such as `read_file` or `readFile`."""


@dataclass(frozen=True, slots=True)
class Named:
    """The names and description of a tool. `native` is its name at its source, `exposed` the name that clients see."""

    source: str
    native: str
    exposed: str
    description: str


def skeleton(name: str) -> str:
    """Return the name of a tool with look-alike characters unified. Two names with the same result can be mistaken for each other."""
    text = unicodedata.normalize("NFKC", name).casefold()
    text = "".join(_LETTERS_ALIKE.get(character, character) for character in text)
    return re.sub(r"_+", "_", text.replace("rn", "m").replace("vv", "w").translate(_LOOKS_LIKE))


def shadowing_remarks(tools: Sequence[Named]) -> tuple[str, ...]:
    """Return remarks for the operator about tools whose name looks like another source's tool, or whose description mentions one."""
    return (*_look_alikes(tools), *_mentions(tools))


def _look_alikes(tools: Sequence[Named]) -> Iterator[str]:
    by_exposed: dict[str, Named] = {}
    by_native: dict[str, Named] = {}
    for tool in tools:
        first = by_exposed.setdefault(skeleton(tool.exposed), tool)
        if first.exposed != tool.exposed and first.source != tool.source:
            yield (
                f"Tool {tool.exposed!r} of {tool.source!r} looks like {first.exposed!r} of {first.source!r}; "
                f"if you know only one of them, remove the other or give it another `prefix` or `overrides` name."
            )
        twin = by_native.setdefault(skeleton(tool.native), tool)
        if twin.native != tool.native and twin.source != tool.source and not (tool.native.isascii() and twin.native.isascii()):
            yield f"Tool {tool.native!a} of {tool.source!r} is spelled to look like {twin.native!a} of {twin.source!r}."


def _mentions(tools: Sequence[Named]) -> Iterator[str]:
    exposed = {tool.exposed: tool.source for tool in tools}
    natives: dict[str, set[str]] = {}
    for tool in tools:
        if _UNMISTAKABLE.search(tool.native):
            natives.setdefault(tool.native, set()).add(tool.source)
    for tool in tools:
        said = dict.fromkeys(_WORD.findall(tool.description))
        for word in said:
            owner = exposed.get(word) or _other(natives, word, tool.source)
            if owner is not None and owner != tool.source:
                yield (
                    f"The description of {tool.exposed!r} ({tool.source!r}) mentions {word!r}, a tool of {owner!r}; read it: "
                    f"one server's text can steer how a model uses another's tools."
                )


def _other(natives: Mapping[str, set[str]], word: str, source: str) -> str | None:
    """Return a source other than `source` that has a tool called `word`: the first of them in alphabetical order.

    Return `None` if no source has such a tool, or if `source` itself has it. `natives` maps the names of tools at their sources to the
    sources.
    """
    owners = natives.get(word, set())
    return next(iter(sorted(owners)), None) if owners and source not in owners else None
