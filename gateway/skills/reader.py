"""Reads skill folders from the disk into `SkillFolder` objects: the parsed `SKILL.md`, the files with digests, and diagnostics.

`index` reads all root folders with this module and assigns ids. A folder whose files have the same sizes and times as before is not read
again, so a refresh costs one `stat` per file. Blocking; `library` calls it in a worker thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.config.paths import did_you_mean_path
from gateway.config.skill_settings import SignatureRule
from gateway.diagnostics import Diagnostic, Verdict
from gateway.skills.folders import MAX_SEARCH_DEPTH, Changed, FoundFile, Listing, Problems, find_skills, list_files, read_file
from gateway.skills.mime import SCRIPT_SUFFIXES, mime_type_of, suffix_of
from gateway.skills.model import (
    MANIFEST,
    MAX_SKILL_BYTES,
    MAX_SKILL_FILES,
    Key,
    SkillDocument,
    SkillFile,
    SkillReport,
    Stamp,
    digest_of,
    is_utf8,
    verdict_of,
)
from gateway.skills.parser import parse_skill
from gateway.skills.signatures import judge_signature, rule_for

SETTLE_NS = 2_000_000_000
"""Nanoseconds for which a changed file counts as unsettled. A file that is hashed within this time after its last change is hashed again at
the next refresh. File systems store times with a coarse resolution, so a second change within this time may leave the times unchanged."""


@dataclass(frozen=True, slots=True)
class SkillFolder:
    """Everything that was read of one skill folder, before the skill index assigns an id and URIs to the skill."""

    key: Key
    is_nested: bool
    """Whether the folder is inside the folder of another skill."""
    listing: Listing
    document: SkillDocument
    files: Mapping[str, SkillFile]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def segments(self) -> tuple[str, ...]:
        """Path of the skill folder below its root folder (the folder searched for skills), as segments."""
        return segments_of(self.key)

    @property
    def path(self) -> str:
        """Absolute path of the skill folder."""
        return os.path.join(self.key[0], *self.segments)

    @property
    def name(self) -> str:
        """Name of the skill folder, without its path."""
        return os.path.basename(self.path)

    @property
    def is_settled(self) -> bool:
        """Whether equal stamps (size and times of each file) prove that nothing changed since the folder was read."""
        return all(f.is_settled for f in self.files.values())

    def is_current(self) -> bool:
        """Return whether the folder on disk is unchanged since it was read. Lists the folder's files and reads none of them."""
        return self.is_settled and list_files(self.key[0], self.segments) == self.listing

    def overlaps(self, other: SkillFolder) -> bool:
        """Return whether this skill folder contains `other` or is inside it, so that both skills publish the same files."""
        shorter = min(len(self.segments), len(other.segments))
        return self.key[0] == other.key[0] and self.segments[:shorter] == other.segments[:shorter]

    def verdict(self, *, strict: bool) -> Verdict:
        """Return whether the skill's diagnostics accept it, accept it with a warning, or reject it. With `strict`, warnings reject it."""
        return verdict_of(self.diagnostics, strict=strict)


class FolderReader:
    """Reads skill folders from the disk. For a folder that did not change since an earlier read, it returns the earlier `SkillFolder`."""

    def __init__(self, known: Mapping[Key, SkillFolder], signed: Mapping[str, SignatureRule]) -> None:
        """Store the `SkillFolder` objects of an earlier read, and a signature rule for each root folder whose skills must be signed."""
        self._known = known
        self._signed = signed
        self.trouble: list[SkillReport] = []
        """One report per root folder (a folder searched for skills) that cannot be used, or that was not searched completely."""

    def read_roots(self, roots: Sequence[str], max_depth: int = MAX_SEARCH_DEPTH) -> Iterable[SkillFolder]:
        """Read every skill up to `max_depth` levels below the folders `roots`. Yields the skill folders in the order of `roots` and paths.

        Each skill is followed by the skills inside its folder. Problems of root folders are added to `trouble`.
        """
        real_roots = {root: os.path.realpath(root) for root in roots}
        order = {real: position for position, real in enumerate(dict.fromkeys(real_roots.values()))}
        found: dict[str, tuple[int, tuple[str, ...], str]] = {}
        for root, real in real_roots.items():
            problems: Problems = []
            if not os.path.isdir(real):
                hint = did_you_mean_path(root) or "Create the folder or correct the path."
                problems.append((real, Diagnostic("root-missing", "error", f"Folder {root!r} is missing. {hint}")))
            for top, segments in find_skills(real, tuple(order), problems, max_depth):
                folder = os.path.join(top, *segments)
                place = (order[top], segments, top)
                found[folder] = min(found.get(folder, place), place)
            for path in dict.fromkeys(path for path, _ in problems):
                diagnostics = tuple(diagnostic for place, diagnostic in problems if place == path)
                self.trouble.append(SkillReport(path, "", verdict_of(diagnostics), False, diagnostics))
        for _, segments, top in sorted(found.values()):
            folder = self.read((top, "/".join(segments)), is_nested=False)
            yield folder
            for inner in folder.listing.nested:
                yield self.read((top, "/".join(inner)), is_nested=True)

    def read(self, key: Key, *, is_nested: bool) -> SkillFolder:
        """Read the skill folder with this key from the disk. If nothing changed, return the same object as the last read returned."""
        root, segments, known = key[0], segments_of(key), self._known.get(key)
        listing = list_files(root, segments)
        if known is not None and known.is_settled and known.listing == listing and known.is_nested == is_nested:
            return known
        kept, diagnostics = _within_limits(listing)
        files: dict[str, SkillFile] = {}
        manifest: bytes | None = None
        for found in kept:
            old = known.files.get(found.path) if known else None
            if old is not None and found.path != MANIFEST and old.is_settled and (old.stamp, old.segments) == (found.stamp, found.segments):
                files[found.path] = old
                continue
            try:
                data, stamp = read_file(root, found.segments)
            except Changed:
                diagnostics.append(Diagnostic("unreadable", "warning", f"{found.path!r} cannot be read; left out."))
                continue
            files[found.path] = _to_file(found, data, stamp)
            if found.path == MANIFEST:
                manifest = data
        folder = os.path.join(root, *segments)
        if self._signed and (rule := rule_for(folder, self._signed)) is not None:
            diagnostics += _check_signature(root, folder, files, rule)
        if manifest is None:
            text = f"{MANIFEST} cannot be read, or is larger than {MAX_SKILL_BYTES} bytes. Correct its rights, or make it smaller."
            document = SkillDocument(diagnostics=(Diagnostic("manifest-unreadable", "error", text),))
        else:
            document = parse_skill(manifest, directory=os.path.basename(folder), file_name=listing.manifest_name)
        now = SkillFolder(key, is_nested, listing, document, files, (*document.diagnostics, *listing.problems, *diagnostics))
        return known if known is not None and known == now else now


def segments_of(key: Key) -> tuple[str, ...]:
    """Return the path segments of a skill folder below its root folder (the folder searched for skills), from the folder's key."""
    return tuple(key[1].split("/")) if key[1] else ()


def _check_signature(root: str, folder: str, files: Mapping[str, SkillFile], rule: SignatureRule) -> list[Diagnostic]:
    """Check the signature of the skill in `folder`. Returns no diagnostics if it is valid.

    Files that no longer have the digests in `files` are an error, so that exactly the served bytes are verified.
    """
    data: dict[str, bytes] = {}
    for path, file in files.items():
        found = read_verified(root, file)
        if found is None:
            return [Diagnostic("signature-invalid", "error", f"{path!r} changed while its signature was checked. Check again.")]
        data[path] = found
    return judge_signature(folder, data, rule)


def read_verified(root: str, file: SkillFile) -> bytes | None:
    """Read a file that is in the skill index, and return its bytes; `None` if it cannot be read or has another digest than in the index."""
    try:
        data, _ = read_file(root, file.segments, file.size)
    except Changed:
        return None
    return data if digest_of(data) == file.digest else None


def _within_limits(listing: Listing) -> tuple[list[FoundFile], list[Diagnostic]]:
    """Return the files of a skill to serve, and a diagnostic for each limit that the skill exceeds.

    For a skill within the limits these are all files, otherwise `SKILL.md` and the files that fit, in path order.
    """
    files = sorted(listing.files, key=lambda f: f.path != MANIFEST)
    total = sum(f.stamp[0] for f in files)
    diagnostics: list[Diagnostic] = []
    if len(files) > MAX_SKILL_FILES and not any(p.code == "too-many-files" for p in listing.problems):
        text = f"{len(files)} files; {MAX_SKILL_FILES} are served, by tools only. Remove the rest."
        diagnostics.append(Diagnostic("too-many-files", "warning", text))
    if total > MAX_SKILL_BYTES:
        text = f"{total} bytes; {MAX_SKILL_BYTES} are served, by tools only. Remove large files."
        diagnostics.append(Diagnostic("too-large", "warning", text))
    kept: list[FoundFile] = []
    left = MAX_SKILL_BYTES
    for found in files:
        if found.stamp[0] <= left and len(kept) < MAX_SKILL_FILES:
            kept.append(found)
            left -= found.stamp[0]
    return kept, diagnostics


def _to_file(found: FoundFile, data: bytes, stamp: Stamp) -> SkillFile:
    is_text = is_utf8(data)
    return SkillFile(
        path=found.path,
        segments=found.segments,
        stamp=stamp,
        digest=digest_of(data),
        mime_type=mime_type_of(found.path, is_text=is_text),
        is_text=is_text,
        is_script=suffix_of(found.path) in SCRIPT_SUFFIXES or data.startswith(b"#!"),
        is_settled=time.time_ns() - max(stamp[1], stamp[3]) > SETTLE_NS,
    )
