#!/usr/bin/env python3
"""Measure English prose: sentence lengths, passives, wordy phrases, Flesch reading ease. Standard library only."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

LONG_SENTENCE_WORDS = 30

WORDY = (
    "a number of",
    "at this point in time",
    "despite the fact that",
    "due to the fact that",
    "for the purpose of",
    "has the ability to",
    "in accordance with",
    "in order to",
    "in terms of",
    "in the event that",
    "it is important to note that",
    "it should be noted that",
    "leverage",
    "make a decision",
    "on a regular basis",
    "prior to",
    "subsequent to",
    "the majority of",
    "utilize",
    "with regard to",
)

WORD = re.compile(r"[A-Za-z][A-Za-z'\u2019-]*")
FENCE = re.compile(r"^(?:```|~~~)")
SKIPPED = re.compile(r"^\s*(?:#|\||>|!\[)")
BULLET = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])")
PASSIVE = re.compile(
    r"\b(?:am|is|are|was|were|be|been|being)\s+(?:\w+ly\s+)?(?:\w+ed|built|done|found|given|held|kept|known|made|run|seen|sent|"
    r"set|shown|taken|told|written)\b",
    re.IGNORECASE,
)


def paragraphs(text: str) -> list[tuple[int, str]]:
    """Prose paragraphs with their first line; code, headings, tables and quotes are left out."""
    found: list[tuple[int, str]] = []
    lines: list[str] = []
    start, in_code = 1, False
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if FENCE.match(line.strip()):
            in_code = not in_code
        breaks = in_code or FENCE.match(line.strip()) or not line.strip() or SKIPPED.match(line)
        if lines and (breaks or BULLET.match(line)):
            found.append((start, " ".join(lines)))
            lines = []
        if breaks:
            continue
        if not lines:
            start = number
        lines.append(BULLET.sub("", line).strip())
    return found


def syllables(word: str) -> int:
    """A good guess for English."""
    plain = re.sub(r"[^a-z]", "", word.lower())
    count = len(re.findall(r"[aeiouy]+", plain))
    if plain.endswith("e") and not plain.endswith(("le", "ee")) and count > 1:
        count -= 1
    return max(1, count)


def measure(text: str) -> dict[str, object]:
    """All figures and findings of a text."""
    lengths: list[int] = []
    syllable_count = 0
    findings: list[dict[str, object]] = []
    for line, paragraph in paragraphs(text):
        for sentence in SENTENCE_END.split(paragraph):
            words = WORD.findall(sentence)
            if not words:
                continue
            lengths.append(len(words))
            syllable_count += sum(syllables(word) for word in words)
            if len(words) > LONG_SENTENCE_WORDS:
                findings.append({"line": line, "kind": "long sentence", "text": f"{len(words)} words: {sentence[:60]}…"})
            findings += [{"line": line, "kind": "passive?", "text": match[0]} for match in PASSIVE.finditer(sentence)]
            lowered = sentence.lower()
            findings += [
                {"line": line, "kind": "wordy", "text": phrase} for phrase in WORDY if re.search(rf"\b{phrase}\b", lowered)
            ]
    words_total = sum(lengths)
    mean = words_total / len(lengths) if lengths else 0.0
    ease = 206.835 - 1.015 * mean - 84.6 * syllable_count / words_total if words_total else 0.0
    return {
        "words": words_total,
        "sentences": len(lengths),
        "wordsPerSentence": round(mean, 1),
        "longestSentence": max(lengths, default=0),
        "readingEase": round(ease, 1),
        "findings": findings,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="the text, plain or Markdown; - reads standard input")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text(encoding="utf-8")
    result = measure(text)
    if options.json:
        json.dump(result, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
        return
    sys.stdout.write(
        f"{result['words']} words, {result['sentences']} sentences, {result['wordsPerSentence']} words a sentence "
        f"(longest {result['longestSentence']}), reading ease {result['readingEase']} (60 and up reads easily)\n"
    )
    findings = result["findings"]
    for finding in findings if isinstance(findings, list) else []:
        sys.stdout.write(f"line {finding['line']}: {finding['kind']}: {finding['text']}\n")


if __name__ == "__main__":
    main()
