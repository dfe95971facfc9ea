"""Normalises text for comparison, so that texts that look alike to a person become equal.

`read_plain` removes accents and invisible characters; `read_as_latin` also replaces every letter that looks like a Latin letter; further
functions replace digits that are used as letters. The results are compared with word lists (`form_words`) and names, and never displayed.

The table of look-alike letters is derived from the Unicode confusables data (UTS #39, version 17.0.0, https://www.unicode.org/Public/security/).
It has the single letters whose skeleton is one Latin letter. Letters with a compatibility decomposition are left out because NFKD handles
them. Small capitals, and Greek and Cyrillic letters that commonly replace Latin letters in disguised words, are added.
"""

from __future__ import annotations

import html
import re
import unicodedata
from functools import cache, lru_cache

SHORT = 4
"""Maximum length of words that keep doubled letters (`cvv`) in a comparison; in longer words, doubled letters become single letters."""

_LOOK_ALIKES = """
a 1d00 251 391 3b1 410 430 13aa 15c5 237a 2c6d a4ee ab7a 102a0 16f40
b 180 181 182 183 184 185 243 253 299 392 3b2 411 412 42c 431 432 44c 462 463 48c 48d 13cf 13f4 13fc 1472 1473 15af 15f7 2c82 2c83
  a4d0 a7b4 a7b5 ab9f 10282 102a1 10301
c a2 23b 23c 421 441 4aa 4ab 1004 105a 13df 1d04 20a1 2ca4 2ca5 a4da abaf 102a2 10302 10415 1043d 1051c
d d0 f0 110 111 189 18a 18b 18c 256 257 500 501 13a0 13e7 146f 15de 15ea 1d05 20ab a4d2 a4d3 ab70 abb7
e 18f 246 247 259 395 3b5 415 42d 435 44d 4bc 4bd 4be 4bf 13ac 1d07 212e 2d39 a4f0 ab32 ab7c 10286 118a6 118ae 118c6 118ce
f 191 192 3dc 3dd 554 584 15b4 1d6e 1e9d a4dd a730 a798 a799 ab35 10287 102a5 10525 118a2 118c2
g 18d 193 1e4 1e5 260 261 262 50c 50d 551 581 13c0 13f3 13fb 1d83 a4d6 a7ac ab90
h 126 127 266 29c 397 40b 41d 43d 45b 4a2 4a3 4ba 4bb 4c7 4c8 4c9 4ca 540 570 13bb 13c2 13f2 13fa 157c 2c67 2c68 2c8e 2c8f a4e7
  a694 a695 a7aa ab8b ab92 102cf
i 131 196 197 268 269 26a 399 3b9 406 456 4c0 552 582 13a5 1d7b 1d7c 2c92 2c93 a646 a647 a7ae ab75 118c3
j 248 249 29d 37f 3f3 408 458 13ab 148d 1d0a a4d9 a7b2 ab7b
k 198 199 39a 3ba 41a 43a 49a 49b 49e 49f 13e6 16d5 1d0b 20ad 2c69 2c6a 2c94 2c95 a4d7 a740 a741 abb6 10518
l 141 142 19a 1c0 23d 26b 26d 29f 4cf 5d5 5df 7ca 13de 14aa 16c1 2c62 2cd0 2cd1 2d4f a4e1 a4f2 abae 1028a 10309 1041b 10443 10526
  118a3 118b2 118d2 16f16 16f28
m 271 39c 3bc 3fa 3fb 41c 43c 4cd 4ce 13b7 15f0 16d6 1d0d 1d6f 20a5 2c6e 2c98 2c99 a4df ab87 102b0 10311 11700
n 14a 14b 19d 19e 220 272 273 274 39d 3b7 418 41f 438 43f 542 548 54c 572 578 57c 1d70 2c9a 2c9b a4e0 10513
o d8 f8 19f 275 398 39f 3a3 3b8 3bf 3c3 3ec 3ed 41e 43e 472 473 4e8 4e9 555 585 5e1 b20 d20 101d 10ff 12d0 13a4 13be 13eb 1cbf
  1d0f 1d11 2c90 2c91 2c9e 2c9f 2d31 2d41 2d54 a4f3 a74a a74b ab3d ab3e ab74 ab8e abbb 10292 102ab 10404 1042c 104c2 104ea 10516
  118a8 118b5 118b7 118c8 118d5 118d7
p de fe 1a4 1a5 1bf 1f7 3a1 3c1 3f7 3f8 420 440 13e2 146d 1d18 1d7d 2c63 2ca2 2ca3 2cce 2ccf a4d1 abb2 10295
q 2a0 51a 51b 533 536 563 566 2d55
r 1a6 24c 24d 27c 27d 280 413 42f 433 44f 492 493 13a1 13b1 13d2 1587 1d26 1d72 2c64 2c84 2c85 a4e3 ab47 ab48 ab71 ab81 aba2 104b4
  104dc 16f35
s 1bc 1bd 282 405 455 54f 57f d1f 13d5 13da 1d74 a4e2 a731 a7c5 aba5 abaa 10296 10420 10448 118a1 118c1 16f3a
t 166 167 1ac 1ad 1ae 23e 288 3a4 3c4 422 442 4ac 4ad 13a2 1d1b 1d75 20ae 22a4 2c66 2ca6 2ca7 a4d4 ab72 10297 102b1 10315 118bc
  16f0a
u 1b2 244 289 28b 3c5 40f 426 446 45f 54d 57d 1200 13cc 144c 1d1c 1d7e 222a a4f4 a79e a79f ab4e ab52 ab9c 104ce 104f6 118b8 118d8
  16f42
v 3bd 474 475 5d8 13d9 142f 1d20 2228 2d38 a4e6 a6df aba9 1051d 11706 118a0 118c0 16f08
w 19c 26f 3a9 3c9 428 429 448 449 460 461 47c 47d 51c 51d 531 561 13b3 13d4 1d21 20a9 2cbc 2cbd a4ea a760 a761 ab83 aba4 114c5
  1170a 1170e 1170f
x 3a7 3c7 425 445 4b2 4b3 1541 157d 16b7 2cac 2cad 2d5d a4eb a7b3 ab53 10290 102b4 10317 10527
y a5 194 1b3 1b4 24e 24f 263 28f 393 3a5 3b3 423 427 443 447 4ae 4af 4b0 4b1 10e7 13a9 13bd 1ca7 1d8c 1efe 1eff 2ca8 2ca9 a4ec
  ab5a ab79 ab8d 102b2 118a4 118dc 16f43
z 1b5 1b6 224 225 290 396 3b6 13c3 1d22 1d76 a4dc ab93 118a9 118c4 118c9
"""
"""Table of look-alikes: a line per Latin letter, with the letter and the hexadecimal code points of characters that look like it.

An indented line continues the line before it. Characters in upper case are replaced by the capital letter.
"""

_INVISIBLE_RANGES = (
    (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x640, 0x640), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x200B, 0x200F),
    (0x202A, 0x202E), (0x2060, 0x206F), (0x2800, 0x2800), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip
"""First and last code points of ranges of invisible characters: without a glyph (Default_Ignorable_Code_Point), or blank letters.

Includes the Arabic tatweel, which only stretches words.
"""

_MARK_RANGES = (
    (0x300, 0x36F), (0x483, 0x489), (0x591, 0x5C7), (0x610, 0x61A), (0x64B, 0x65F), (0x670, 0x670), (0x6D6, 0x6DC), (0x6DF, 0x6E4),
    (0x6E7, 0x6E8), (0x6EA, 0x6ED), (0x8D3, 0x8FF), (0x93C, 0x93C), (0x9BC, 0x9BC), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20F0),
    (0x2DE0, 0x2DFF), (0x302A, 0x302F), (0x3099, 0x309A), (0xA66F, 0xA67D), (0xFE20, 0xFE2F),
)  # fmt: skip
"""First and last code points of ranges of accents and other combining marks, which are removed.

Vowel signs of Indic scripts and Thai are not included because they are letters.
"""

_SAME_LETTERS = {
    **{0x649: 0x64A, 0x6CC: 0x64A, 0x6A9: 0x643, 0x6C1: 0x647, 0x6BE: 0x647, 0x629: 0x647, 0x6D5: 0x647},
    **dict(zip(map(ord, "łŁøØđĐıħĦ"), map(ord, "lLoOdDihH"), strict=True)),
}
"""Code point of a variant of a letter → code point of the basic letter, for variants that NFKD does not decompose.

The variants are Persian and Urdu forms of Arabic letters, and Latin letters with a stroke.
"""

_ENCLOSED_LETTERS = (0x1F150, 0x1F170, 0x1F1E6)
"""First code points of three sets of 26 letters that NFKD does not decompose: negative circled, negative squared, regional indicators."""

_SAME_LOOKS = frozenset(map(chr, (
    0x430, 0x435, 0x43E, 0x440, 0x441, 0x443, 0x445, 0x455, 0x456, 0x458, 0x475, 0x4BB, 0x4CF, 0x501, 0x51B, 0x51D,
    0x3B1, 0x3B9, 0x3BA, 0x3BD, 0x3BF, 0x3C1, 0x3C5, 0x585, 0x578, 0x57D,
)))  # fmt: skip
"""Lower-case Cyrillic, Greek and Armenian letters that are indistinguishable from Latin letters."""

_DIGITS_AS_LETTERS = str.maketrans("0345789@$!|+€£¢", "oeastbgasiitelc")
"""Digit or sign → the letter that it replaces inside a word. Without `1`, which can replace `i` or `l`."""

_REPEATED = re.compile(r"(.)\1+")
_LOWER_L_AMONG_CAPITALS = re.compile(r"(?<=[A-Z])l(?=[A-Z]|\b)")
_CAPITAL_I_AMONG_SMALL = re.compile(r"(?<=[a-z])I(?=[a-z]|\b)")


def read_plain(text: str) -> str:
    """Return `text` in Unicode compatibility form, without accents and invisible characters, and with HTML entities decoded.

    The script, case and line ends are kept; only the letters of `_ENCLOSED_LETTERS` become small letters.
    """
    if "&" in text:
        text = html.unescape(text)
    if text.isascii():
        return text
    apart = unicodedata.normalize("NFKD", text).translate(_dropped())
    return unicodedata.normalize("NFC", apart)


def read_as_latin(plain: str) -> str:
    """Replace every letter that looks like a Latin letter by that Latin letter. `plain` is a result of `read_plain`."""
    shown = plain if plain.isascii() else plain.translate(_latin())
    return _CAPITAL_I_AMONG_SMALL.sub("l", _LOWER_L_AMONG_CAPITALS.sub("I", shown))


def looks_latin(name: str) -> bool:
    """Return whether a name with letters of other scripts can be mistaken for a name in Latin letters.

    It can if it mixes Latin letters with look-alikes, or if all letters beyond ASCII are indistinguishable from Latin letters.
    """
    plain = read_plain(name)
    others = {letter for letter in plain if not letter.isascii() and letter.isalpha()}
    has_latin = any(letter.isascii() and letter.isalpha() for letter in plain)
    return bool(others) and (others <= _SAME_LOOKS or (has_latin and any(ord(letter) in _latin() for letter in others)))


def read_letters(word: str) -> str:
    """Return a word with letters in place of digits and signs that look like them (`p4ss` → `pass`)."""
    return word.translate(_DIGITS_AS_LETTERS).replace("1", "i")


def spell_letters(word: str) -> tuple[str, ...]:
    """Return the spellings by which a disguised lower-case word is compared with names of secrets (`p4ssword` → `pasword`).

    They have letters in place of digits and signs, and no doubled letters in words of more than `SHORT` letters. There are two spellings
    if the word mixes letters with `1`, which can replace `i` or `l`. In a word of digits only, the digits stay.
    """
    if word.isalpha() or word.isdigit():
        return (_single(word),)
    spelled = word.translate(_DIGITS_AS_LETTERS)
    if "1" not in spelled:
        return (_single(spelled),)
    return _single(spelled.replace("1", "i")), _single(spelled.replace("1", "l"))


@lru_cache(maxsize=8192)
def undouble(word: str) -> str:
    """Return a word with single letters in place of doubled letters, and `w` and `m` in place of `vv` and `rn`, which look like them."""
    return _REPEATED.sub(r"\1", word.replace("vv", "w").replace("rn", "m"))


def _single(word: str) -> str:
    return undouble(word) if len(word) > SHORT else word


@cache
def _dropped() -> dict[int, int | None]:
    gone = {code: None for ranges in (_INVISIBLE_RANGES, _MARK_RANGES) for first, last in ranges for code in range(first, last + 1)}
    enclosed = {first + number: ord("a") + number for first in _ENCLOSED_LETTERS for number in range(26)}
    return {**gone, **_SAME_LETTERS, **enclosed}


@cache
def _latin() -> dict[int, str]:
    table: dict[int, str] = {}
    for line in _LOOK_ALIKES.replace("\n  ", " ").split("\n"):
        letter, *codes = line.split() or [""]
        for code in (int(digits, 16) for digits in codes):
            table[code] = letter.upper() if chr(code).isupper() else letter
    return table
