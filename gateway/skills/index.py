"""`SkillIndex`: everything served, as one immutable table, and how it is built from folders.

All surfaces (extension, resources, tools, prompts) answer from the same table, so they cannot disagree. Building
again reuses whatever the disk shows unchanged, so a refresh is a pass of `stat` calls. Client input is only ever
looked up here, never joined to a path. Blocking; `library` runs it in a worker thread.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast
from urllib.parse import quote

from gateway.config.paths import did_you_mean_path
from gateway.config.skills import SignatureRule
from gateway.diagnostics import Diagnostic, Verdict
from gateway.json_types import JsonObject, JsonValue
from gateway.skills.files import Changed, Found, Listing, Problems, find_skills, list_files, read_file
from gateway.skills.mime import SCRIPT_SUFFIXES, mime_type_of, suffix_of
from gateway.skills.models import (
    MANIFEST,
    MAX_SKILL_BYTES,
    MAX_SKILL_FILES,
    Skill,
    SkillDocument,
    SkillFile,
    SkillReport,
)
from gateway.skills.parser import parse_skill
from gateway.skills.search import SearchIndex
from gateway.skills.signatures import judge_signature, rule_for

logger = logging.getLogger(__name__)

SCHEME = "skill://"

SOURCE_ID = "skill"
"""The source that publishes the gateway's own skills."""

PREFIX = "code"
"""Goes before the name of a skill in code where a folder's skill has that name."""

SETTLE_NS = 2_000_000_000
"""A file touched less than this before it was hashed is hashed again next time: file systems keep times coarsely,
so a second change may leave its stamp alone."""

_SAFE = "-._~!$&'()*+,;=:@"
"""Characters that a URI path segment may hold unquoted (RFC 3986, pchar)."""

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One skill folder as last read, before names are given out."""

    key: Key
    segments: tuple[str, ...]
    is_nested: bool
    listing: Listing
    document: SkillDocument
    files: Mapping[str, SkillFile]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def is_settled(self) -> bool:
        """Whether equal stamps prove that nothing changed."""
        return all(f.is_settled for f in self.files.values())

    def verdict(self, *, strict: bool) -> Verdict:
        """What the findings come to."""
        levels = {d.level for d in self.diagnostics}
        if "error" in levels or (strict and "warning" in levels):
            return "rejected"
        return "accepted_with_warning" if "warning" in levels else "accepted"


@dataclass(frozen=True, slots=True)
class SkillIndex:
    """The table of everything served. Build with `build_index`; never changed."""

    candidates: Mapping[Key, Candidate] = field(default_factory=lambda: cast("dict[Key, Candidate]", {}))
    skills: tuple[Skill, ...] = ()
    """Sorted by id."""
    listed: tuple[Skill, ...] = ()
    """Those with URIs, sorted by them."""
    for_models: tuple[Skill, ...] = ()
    """Those that tools, search and catalogue may show, sorted by id."""
    reports: tuple[SkillReport, ...] = ()
    """One per skill folder found, refused ones included."""
    trouble: tuple[SkillReport, ...] = ()
    """One per root folder that cannot be used or searched to the end."""
    by_id: Mapping[str, Skill] = field(default_factory=lambda: cast("dict[str, Skill]", {}))
    by_key: Mapping[Key, Skill] = field(default_factory=lambda: cast("dict[Key, Skill]", {}))
    by_root: Mapping[str, Skill] = field(default_factory=lambda: cast("dict[str, Skill]", {}))
    """Root URI → skill."""
    by_file: Mapping[str, tuple[Skill, SkillFile]] = field(default_factory=lambda: cast("dict[str, tuple[Skill, SkillFile]]", {}))
    """URI → file, canonical quoting only."""
    search: SearchIndex = field(default_factory=lambda: SearchIndex([]))
    by_name: Mapping[str, tuple[Skill, ...]] = field(default_factory=lambda: cast("dict[str, tuple[Skill, ...]]", {}))
    """Case-folded name or id → the skills for models that have it."""

    @property
    def has_uris(self) -> bool:
        """Whether any skill has some, ours or a server's."""
        return any(skill.is_listed for skill in self.skills)

    def named(self, name: str) -> list[Skill]:
        """Skills for models that `name` may mean: an id or URI means one, a name all that have it; case is forgiven."""
        wanted = name.strip().removesuffix(f"/{MANIFEST}").removeprefix(SCHEME).rstrip("/")
        found = self.by_name.get(wanted.casefold(), ())
        if name.strip().startswith(SCHEME) or "/" in wanted:
            found = [s for s in found if s.id.casefold() == wanted.casefold()]
            return [s for s in found if s.id == wanted] or found
        return [s for s in found if s.name == wanted] or list(found)

    def handle(self, skill: Skill) -> str:
        """What to call a skill so that `named` finds just it: its name, or its qualified form where that is shared."""
        return skill.name if len(self.named(skill.name)) == 1 else SCHEME + skill.id

    def directory(self, uri: str) -> tuple[Skill, str] | None:
        """The skill and the path in it of a folder's URI (no trailing slash), or `None`."""
        root = uri
        while root and root not in self.by_root:
            root = root.rpartition("/")[0]
        if not root:
            return None
        skill = self.by_root[root]
        for path in skill.files:
            parts = path.split("/")[:-1]
            for depth in range(len(parts) + 1):
                folder = "/".join(parts[:depth])
                if (file_uri(root, folder) if folder else root) == uri:
                    return skill, folder
        return None


def file_uri(root_uri: str, path: str) -> str:
    """The canonical URI of a path below `root_uri`."""
    return "/".join((root_uri, *(quote(segment, safe=_SAFE) for segment in path.split("/"))))


def own_uri(skill: Skill, path: str) -> str:
    """The URI of a file of one of the gateway's own skills, also of a skill that only the tools serve."""
    return file_uri(skill.root_uri or f"{SCHEME}{skill.id}", path)


# -- building ------------------------------------------------------------------------------------------------------


def build_index(
    roots: Sequence[str],
    *,
    strict: bool = False,
    previous: SkillIndex | None = None,
    only: frozenset[Key] | None = None,
    remembered: Mapping[Key, Candidate] | None = None,
    signed: Mapping[str, SignatureRule] | None = None,
) -> SkillIndex:
    """Read the skills below `roots`, taking over from `previous`, or at a start from `remembered`, what did not change.

    With `only`, no other skill is looked at: for answering about a skill that was seen to change. Returns `previous`
    itself when nothing differs. `signed` are roots whose skills must be signed; what is remembered must have been read under
    the same rules.
    """
    rules = signed or {}
    known: Mapping[Key, Candidate] = previous.candidates if previous else (remembered or {})
    trouble: list[SkillReport] = []
    candidates: dict[Key, Candidate] = {}
    if only is not None and previous is not None:
        trouble += previous.trouble
        touched = {key for key, c in known.items() if any(_overlap(c, known[k]) for k in only if k in known)}
        for key, c in known.items():
            candidates[key] = _read_candidate(key, c.segments, c.is_nested, c, rules) if key in touched else c
    else:
        for candidate in _read_all(roots, known, trouble, rules):
            candidates.setdefault(candidate.key, candidate)
    if previous is not None and tuple(trouble) == previous.trouble and list(candidates) == list(known):
        if all(candidates[key] is known[key] for key in known):
            return previous
    return _assemble(candidates, trouble, strict=strict)


def is_current(index: SkillIndex, key: Key) -> bool:
    """Whether a skill's folder still shows what the index says; a look at that folder only. Blocking."""
    known = index.candidates.get(key)
    return known is not None and known.is_settled and list_files(key[0], known.segments) == known.listing


def _overlap(first: Candidate, second: Candidate) -> bool:
    """Whether one folder holds the other, so that both publish the same bytes."""
    shorter = min(len(first.segments), len(second.segments))
    return first.key[0] == second.key[0] and first.segments[:shorter] == second.segments[:shorter]


def _read_all(
    roots: Sequence[str], known: Mapping[Key, Candidate], trouble: list[SkillReport], signed: Mapping[str, SignatureRule]
) -> Iterable[Candidate]:
    real_roots = {root: os.path.realpath(root) for root in roots}
    order = {real: position for position, real in enumerate(dict.fromkeys(real_roots.values()))}
    found: dict[str, tuple[int, tuple[str, ...], str]] = {}
    for root, real in real_roots.items():
        problems: Problems = []
        if not os.path.isdir(real):
            hint = did_you_mean_path(root) or "Create it or correct the path."
            problems.append((real, Diagnostic("root-missing", "error", f"There is no folder {root!r}. {hint}")))
        for home, segments in find_skills(real, tuple(order), problems):
            folder = os.path.join(home, *segments)
            place = (order[home], segments, home)
            found[folder] = min(found.get(folder, place), place)
        for path in dict.fromkeys(path for path, _ in problems):
            found_here = tuple(finding for place, finding in problems if place == path)
            verdict: Verdict = "rejected" if any(p.level == "error" for p in found_here) else "accepted_with_warning"
            trouble.append(SkillReport(path, "", verdict, False, found_here))
    for _, segments, home in sorted(found.values()):
        yield from _read_tree((home, "/".join(segments)), segments, known, signed, is_nested=False)


def _read_tree(
    key: Key, segments: tuple[str, ...], known: Mapping[Key, Candidate], signed: Mapping[str, SignatureRule], *, is_nested: bool
) -> Iterable[Candidate]:
    candidate = _read_candidate(key, segments, is_nested, known.get(key), signed)
    yield candidate
    if not is_nested:
        for inner in candidate.listing.nested:
            yield from _read_tree((key[0], "/".join(inner)), inner, known, signed, is_nested=True)


def _read_candidate(
    key: Key, segments: tuple[str, ...], is_nested: bool, known: Candidate | None, signed: Mapping[str, SignatureRule]
) -> Candidate:
    root = key[0]
    listing = list_files(root, segments)
    if known is not None and known.is_settled and known.listing == listing and known.is_nested == is_nested:
        return known
    kept, over = _within_limits(listing)
    findings = [*listing.problems, *over]
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
            findings.append(Diagnostic("unreadable", "warning", f"{found.path!r} cannot be read; left out."))
            continue
        files[found.path] = _describe(found, data, stamp)
        if found.path == MANIFEST:
            manifest = data
    directory = segments[-1] if segments else os.path.basename(root)
    if signed and (rule := rule_for(os.path.join(root, *segments), signed)) is not None:
        findings += _check_signature(root, os.path.join(root, *segments), files, rule)
    if manifest is None:
        text = f"{MANIFEST} cannot be read, or is larger than {MAX_SKILL_BYTES} bytes."
        findings.append(Diagnostic("manifest-unreadable", "error", text))
        document = SkillDocument({}, "", "", "", 0, conformant=False)
    else:
        document = parse_skill(manifest, directory=directory, file_name=listing.manifest_name)
    candidate = Candidate(
        key=key,
        segments=segments,
        is_nested=is_nested,
        listing=listing,
        document=document,
        files=files,
        diagnostics=(*document.diagnostics, *findings),
    )
    return known if known is not None and known == candidate else candidate


def _check_signature(root: str, folder: str, files: Mapping[str, SkillFile], rule: SignatureRule) -> list[Diagnostic]:
    """What is wrong with the signature over exactly the bytes that were indexed."""
    data: dict[str, bytes] = {}
    for path, file in files.items():
        try:
            data[path], _ = read_file(root, file.segments, file.size)
        except Changed:
            data[path] = b""
        if f"sha256:{hashlib.sha256(data[path]).hexdigest()}" != file.digest:
            return [Diagnostic("signature-invalid", "error", f"{path!r} changed while its signature was checked.")]
    return judge_signature(folder, data, rule)


def _within_limits(listing: Listing) -> tuple[list[Found], list[Diagnostic]]:
    """The files to serve: all of them, or for a skill over the limits `SKILL.md` and what fits, in path order."""
    files = sorted(listing.files, key=lambda f: f.path != MANIFEST)
    total = sum(f.stamp[0] for f in files)
    findings: list[Diagnostic] = []
    if len(files) > MAX_SKILL_FILES and not any(p.code == "too-many-files" for p in listing.problems):
        findings.append(
            Diagnostic("too-many-files", "warning", f"{len(files)} files; {MAX_SKILL_FILES} are served, by tools only. Remove the rest.")
        )
    if total > MAX_SKILL_BYTES:
        findings.append(
            Diagnostic("too-large", "warning", f"{total} bytes; {MAX_SKILL_BYTES} are served, by tools only. Remove large files.")
        )
    kept: list[Found] = []
    left = MAX_SKILL_BYTES
    for found in files:
        if found.stamp[0] <= left and len(kept) < MAX_SKILL_FILES:
            kept.append(found)
            left -= found.stamp[0]
    return kept, findings


def _describe(found: Found, data: bytes, stamp: tuple[int, int, int, int]) -> SkillFile:
    try:
        data.decode("utf-8")
        is_text = True
    except UnicodeDecodeError:
        is_text = False
    return SkillFile(
        path=found.path,
        segments=found.segments,
        stamp=stamp,
        digest=f"sha256:{hashlib.sha256(data).hexdigest()}",
        mime_type=mime_type_of(found.path, is_text=is_text),
        is_text=is_text,
        is_script=suffix_of(found.path) in SCRIPT_SUFFIXES or data.startswith(b"#!"),
        is_settled=time.time_ns() - max(stamp[1], stamp[3]) > SETTLE_NS,
    )


# -- giving out names ----------------------------------------------------------------------------------------------


def _assemble(candidates: Mapping[Key, Candidate], trouble: Sequence[SkillReport], *, strict: bool) -> SkillIndex:
    taken: set[str] = set()
    names = Counter(c.document.name for c in candidates.values() if _is_listable(c, strict))
    skills: list[Skill] = []
    reports: list[SkillReport] = []
    for candidate in candidates.values():
        listable = _is_listable(candidate, strict)
        if candidate.is_nested and not listable:
            continue  # just a file of the skill around it
        skill = None
        if candidate.verdict(strict=strict) != "rejected":
            skill_id = _unique_id(candidate, taken, names, listable=listable)
            skill = _serve(candidate, skill_id, listable=listable)
            if strict and skill.diagnostics != candidate.diagnostics:
                skill, candidate = None, replace(candidate, diagnostics=skill.diagnostics)
            else:
                taken.add(skill_id)
                skills.append(skill)
        reports.append(_report(candidate, skill, strict))
    return _tabulate(SkillIndex(candidates=candidates, reports=tuple(reports), trouble=tuple(trouble)), skills)


def with_more(index: SkillIndex, more: Sequence[Skill], keeps: Callable[[str], bool] | None) -> SkillIndex:
    """The table of `index`, which is of folders, and of skills that are in none; without those of ours whose id `keeps` refuses.

    A folder's skill keeps its id. Another one of this gateway gets a prefix then, as a second folder would; one of a server,
    whose URIs are not ours to change, is left out with a line in the log.
    """
    if not more and keeps is None:
        return index
    skills = list(index.skills)
    taken = {skill.id for skill in skills}
    names = {skill.name for skill in (*skills, *more)}
    for skill in more:
        if skill.id in taken and skill.is_remote:
            logger.warning("skill %s of %s is not served: another one has its URI", skill.id, skill.origin)
            continue
        served = skill
        if skill.id in taken:
            note = Diagnostic("name-taken", "warning", f"Another skill is called {skill.id!r}; rename one.")
            served = replace(published(skill, _prefixed(PREFIX, skill.name, taken, names)), diagnostics=(*skill.diagnostics, note))
        taken.add(served.id)
        skills.append(served)
    return _tabulate(index, skills if keeps is None else [skill for skill in skills if skill.is_remote or keeps(skill.id)])


def _tabulate(index: SkillIndex, skills: list[Skill]) -> SkillIndex:
    """`index` with these skills and every way to look them up."""
    skills.sort(key=lambda s: s.id)
    here = [s for s in skills if s.is_listed and not s.is_remote]
    for_models = tuple(s for s in skills if s.is_for_models)
    by_name: dict[str, tuple[Skill, ...]] = {}
    for skill in for_models:
        for name in {skill.id.casefold(), skill.name.casefold(), skill.document.name.casefold()} - {""}:
            by_name[name] = (*by_name.get(name, ()), skill)
    return replace(
        index,
        skills=tuple(skills),
        listed=tuple(sorted(here, key=lambda s: s.root_uri)),
        for_models=for_models,
        by_id={s.id: s for s in skills},
        by_key={s.key: s for s in skills},
        by_root={s.root_uri: s for s in here},
        by_file={file_uri(s.root_uri, f.path): (s, f) for s in here for f in s.files.values()},
        search=SearchIndex(for_models),
        by_name=by_name,
    )


def _is_listable(candidate: Candidate, strict: bool) -> bool:
    within = not any(d.code in ("too-many-files", "too-large") for d in candidate.diagnostics)
    return candidate.document.conformant and within and candidate.verdict(strict=strict) != "rejected"


def _unique_id(candidate: Candidate, taken: set[str], names: Counter[str], *, listable: bool) -> str:
    """The name; on a clash the name under a prefix: its own folder, or the folder around it if that says nothing new.

    A prefix is never itself a skill's name: its URIs would lie inside that skill. What cannot be listed gives way
    to every listed name.
    """
    folder = candidate.segments[-1] if candidate.segments else os.path.basename(candidate.key[0])
    name = candidate.document.name if listable else _slug(folder)
    if name not in taken and (listable or name not in names):
        return name
    around = candidate.segments[-2] if len(candidate.segments) > 1 else os.path.basename(candidate.key[0])
    return _prefixed(_slug(around) if _slug(folder) == name else _slug(folder), name, taken, names)


def _prefixed(stem: str, name: str, taken: Container[str], names: Container[str]) -> str:
    prefix, number = stem, 1
    while prefix in names or f"{prefix}/{name}" in taken:
        number += 1
        prefix = f"{stem}-{number}"
    return f"{prefix}/{name}"


def _slug(text: str) -> str:
    """`text` as a legal name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].rstrip("-") or "skill"


def _serve(candidate: Candidate, skill_id: str, *, listable: bool) -> Skill:
    diagnostics = candidate.diagnostics
    if "/" in skill_id:
        note = f"Another skill is called {skill_id.rpartition('/')[2]!r}; this one is served as {skill_id!r}. Rename one."
        diagnostics = (*diagnostics, Diagnostic("name-taken", "warning", note))
    skill = Skill(
        id=skill_id,
        key=candidate.key,
        origin="/".join((os.path.basename(candidate.key[0]) or "root", *candidate.segments)),
        root_uri="",
        document=candidate.document,
        files=candidate.files,
        diagnostics=diagnostics,
    )
    return published(skill, skill_id) if listable else skill


def published(skill: Skill, skill_id: str) -> Skill:
    """A skill with its URIs and its entry under an id; `dynamic` where a file of it is made anew at each read (SEP-2640)."""
    root_uri = SCHEME + skill_id
    files = skill.files.values()
    resources = [{"uri": file_uri(root_uri, f.path), "digest": f.digest, "size": f.size} for f in files]
    entry: JsonObject = {
        "uri": f"{root_uri}/{MANIFEST}",
        "frontmatter": dict(skill.document.frontmatter),
        "resources": "dynamic" if any(f.is_dynamic for f in files) else list[JsonValue](resources),
    }
    return replace(skill, id=skill_id, root_uri=root_uri, entry=entry)


def _report(candidate: Candidate, skill: Skill | None, strict: bool) -> SkillReport:
    diagnostics = skill.diagnostics if skill else candidate.diagnostics
    verdict: Verdict = "rejected"
    if skill is not None:
        verdict = "accepted_with_warning" if any(d.level == "warning" for d in diagnostics) else "accepted"
    return SkillReport(
        path=os.path.join(candidate.key[0], *candidate.segments),
        name=skill.name if skill else candidate.document.name,
        verdict=verdict,
        listed=skill is not None and skill.is_listed,
        diagnostics=diagnostics,
    )
