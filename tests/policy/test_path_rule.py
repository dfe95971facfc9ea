"""`within`: an accepted path is inside the folder in every reading, and every ambiguous spelling is rejected."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.policy.path_rule import judge_path, judge_uri, read_path_rule
from tests.fakes.bypasses import PATHS as REFUSED
from tests.fakes.bypasses import is_inside, places_of

ADMITTED = [
    "docs", "docs/", "docs/a", "./docs/a", "docs//a", "docs/./a", "docs/a/", "././docs", "docs/a.txt", "docs/.hidden", "docs/a..b",
    "docs/a.b.c",
    "docs/My notes (1).md", "docs/don't.txt", "docs/[id].tsx", "docs/a~", "docs/~a", "docs/$id.tsx", "docs/100%.txt", "docs/50%off",
    "docs/-a",
    "docs/a+b=c,d;e@f!g^h&i#j", "docs/auxiliary", "docs/nulls/com10", "docs/\u00fcber.txt", "docs/u\u0308ber",
    "docs/\u65e5\u672c\u8a9e.txt",
    "docs/\u4eca\u65e5\u3002\u660e\u65e5.txt", "docs/\u30ce\u30fc\u30c8", "docs/\u0662\u0660",
    "docs/\u2764\ufe0f.md", "docs/Screenshot at 1\u202fPM.png", "docs/and so on\u2026 here", "docs/\uff34itle", "docs/" + "a" * 4_091,
]  # fmt: skip


@pytest.mark.attack(20)
@pytest.mark.parametrize("value", REFUSED, ids=ascii)
def test_doubtful_path_is_refused(value: str) -> None:
    reason = judge_path(value, read_path_rule("docs/"))
    assert reason is not None
    assert len(value) < 3 or value not in reason


DOTS = "\u0701\u0702\u2024\u3002\ua4f8\ua60e\uff61\U00010a50\U0001d16d"
DOT_RUNS = "\u2025\u2026\ua4fa\ufe19"
SLASHES = "\u1735\u2041\u2044\u2215\u2571\u27cb\u29f8\u2afb\u2afd\u3033\u31d3\U0001d23a"
BACKSLASHES = "\u00a5\u20a9\u2216\u244a\u2572\u27cd\u29f5\u29f9\u2cf9\u31d4\ufe68\U0001d20f\U0001d23b"
"""Look-alikes by UTS 39 that are neither letters nor digits of a script in use, and those of code pages and of host names (UTS 46)."""


@pytest.mark.attack(20)
def test_no_look_alike_of_dots_or_separators_passes() -> None:
    every = [chr(code) for code in range(0x80, sys.maxunicode + 1)]
    read = {character: unicodedata.normalize("NFKC", character) for character in every}
    dots = {*DOTS, *DOT_RUNS, *(character for character, text in read.items() if text.strip(".") == "")}
    separators = {*SLASHES, *BACKSLASHES, *(character for character, text in read.items() if text.strip("/\\") == "")}
    assert len(dots) > 15 and len(separators) > 25
    rules = read_path_rule("docs/"), read_path_rule(".")
    paths = [form.format(c) for c in dots for form in ("docs/{0}{0}/x", "docs/.{0}/x", "docs/{0}./x", "docs/a/{0}{0}")]
    paths += [f"docs/a{c}..{c}b" for c in separators]
    assert [ascii(path) for path in paths for rule in rules if judge_path(path, rule) is None] == []
    uris = [form.format(c) for c in dots for form in ("file:///docs/{0}{0}/x", "file:///docs/.{0}/x")]
    uris += [f"file:///docs/a{c}..{c}b" for c in separators]
    assert [ascii(uri) for uri in uris if judge_uri(uri) is None] == []


@pytest.mark.parametrize("value", ADMITTED, ids=lambda value: ascii(value)[:60])
def test_plain_path_passes(value: str) -> None:
    assert judge_path(value, read_path_rule("docs/")) is None


@pytest.mark.parametrize(
    ("rule", "admitted", "refused"),
    [
        (".", [".", "a", "docs/a", "./a", ".git/config"], ["/a", "..", "~/a", "./~/a", "$HOME", "-a", "a/../b", "C:/a"]),
        ("./", ["a"], ["/a"]),
        (["docs", "src/lib"], ["docs/a", "src/lib/a"], ["src/a", "src", "src/library"]),
        ("/srv/docs", ["/srv/docs", "/srv//docs/./a"], ["srv/docs/a", "docs/a", "/srv/docsx", "/srv/../srv/docs", "//srv/docs"]),
        ("/", ["/", "/etc/passwd"], ["etc/passwd", "//etc", "/a/../b"]),
        (["/", "."], ["/etc/passwd", "a"], ["../a", "~/a", "C:/a", "a\\b"]),
        ("C:\\Data\\Ann", ["C:\\Data\\Ann\\a", "c:/Data/Ann/a", "C:/Data\\Ann"], ["C:\\Data\\Bob", "D:\\Data\\Ann\\a", "C:Data\\Ann"]),
        ("c:/Data", ["C:\\Data\\a"], ["C:\\Data\\..\\Bob", "C:\\Data\\a:b", "\\\\?\\C:\\Data\\a", "C:\\data\\a", "C:", "/c:/Data"]),
    ],
)
def test_rule_admits_its_folder_in_its_own_style(rule: str | list[str], admitted: list[str], refused: list[str]) -> None:
    compiled = read_path_rule(rule)
    assert [value for value in admitted if judge_path(value, compiled) is not None] == []
    assert [value for value in refused if judge_path(value, compiled) is None] == []


@pytest.mark.parametrize(
    "written",
    ["", "..", "../docs", "a/../b", "~/a", "$HOME", "a\\b", "a/*", "\\\\host\\a", "C:a", "a/ ", "\uff44ocs", [], ["a", 3], {}, None, 3],
    ids=ascii,
)
def test_rule_with_an_undetermined_folder_is_rejected(written: object) -> None:
    with pytest.raises(ValueError, match="within"):
        read_path_rule(written)


@pytest.mark.parametrize(
    ("rule", "value", "says"),
    [
        ("docs", "/docs/a", "is absolute; write it relative"),
        ("docs", "src/a", "is outside"),
        ("/srv/docs", "docs/a", "is outside"),
        ("/srv/docs", "/srv/a", "is outside"),
        ("docs", "docs\\a", "has a backslash; separate names by '/'"),
        ("docs", "docs/\uff0e\uff0e/a", "has look-alike characters"),
    ],
)
def test_refusal_reason_names_the_problem(rule: str, value: str, says: str) -> None:
    assert (judge_path(value, read_path_rule(rule)) or "").startswith(says)


# -- an independent model --------------------------------------------------------------------------------------------

TOKENS = [
    "docs", "doc", "s", "a", "..", ".", "/", "//", "\\", "\\\\", "%2e", "%2E%2e", "%2f", "%5c", "%252e", "%252f", "%", "%25", "~",
    "~1", "$HOME",
    " ", "\u00a0", "\u3000", "\t", "\n", "\0", ":", "C:", "c:/", "file://", "::$DATA", "*", "?", "{..,a}", "'", '"', "`", "[.]", "[",
    "]", ";", "#", "&",
    "\uff0e", "\u2024", "\u2025", "\u2026", "\ufe52", "\uff0f", "\u2215", "\u2044", "\u29f8", "\uff3c", "\u2216", "\ufe68", "\u00a5",
    "\u20a9",
    "\uff05", "\u200b", "\u200d", "\u202e", "\ufeff", "\ufe0f", "\u0301", "\u00fc", "\u00b9", "nul", "com1", "CON", ".txt", "-", "...",
    ".. ", "é",
]  # fmt: skip
TEXTS = st.one_of(
    st.lists(st.sampled_from(TOKENS), min_size=1, max_size=8).map("".join),
    st.lists(st.sampled_from(TOKENS), min_size=1, max_size=8).map(lambda parts: "docs/" + "".join(parts)),
    st.tuples(st.just("docs/"), st.text(max_size=12)).map("".join),
    st.text(max_size=20),
)


def lead_inside(value: str) -> None:
    if judge_path(value, read_path_rule("docs/")) is None:
        assert [place for place in places_of(value) if not is_inside(place, "docs")] == []


@pytest.mark.attack(20)
@settings(max_examples=300)
@given(TEXTS)
@example("docs/a b/c")
@example("docs/.. /x")
@example("docs/%252e%252e/x")
def test_admitted_path_leads_inside_in_every_reading(value: str) -> None:
    lead_inside(value)


@pytest.mark.faults
@pytest.mark.attack(20)
@pytest.mark.timeout(600)
@settings(max_examples=20_000, derandomize=False)
@given(TEXTS)
def test_admitted_paths_lead_inside_in_every_reading(value: str) -> None:
    lead_inside(value)


@settings(max_examples=100)
@given(st.lists(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_ -]{0,8}[A-Za-z0-9_](\.[a-z]{1,4})?", fullmatch=True), min_size=1, max_size=5))
def test_ordinary_path_passes(names: list[str]) -> None:
    devices = ("con", "prn", "aux", "nul", "com", "lpt")
    ordinary = [name for name in names if not name.lower().startswith(devices)]
    assert judge_path("/".join(["docs", *ordinary]), read_path_rule("docs/")) is None
