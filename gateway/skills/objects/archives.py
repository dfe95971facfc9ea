"""Reads skills that a remote server offers as ZIP archives. Archives are unpacked in memory and within limits.

Archives are not trusted: the size of the archive and the number, sizes and names of its files are checked while it is read. Files of an
archive can only be read; its scripts cannot be run. `mcp_source` uses this module.
"""

from __future__ import annotations

import io
import logging
import zipfile
import zlib
from dataclasses import dataclass

from gateway.skills.model import MANIFEST, digest_of, is_manifest, is_utf8
from gateway.skills.objects.code_skills import InlineSkillResource
from gateway.skills.objects.file_source import FileSelection, path_inside, to_frontmatter
from gateway.skills.objects.skill import FileSkill
from gateway.skills.parser import parse_skill

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Settings for reading a ZIP archive that contains a skill.

    The `max_…` fields limit the number of files and the sizes; an archive beyond a limit is not used. `offer` selects the files that models
    can read as resources of the skill.
    """

    max_files: int
    max_bytes: int
    """Maximum size of the archive itself, in bytes."""
    max_unpacked_bytes: int
    """Maximum size of all unpacked files together, in bytes."""
    offer: FileSelection


def read_archive(data: bytes, *, name: str, url: str, digest: object, limits: ArchiveLimits) -> FileSkill | None:
    """Return the skill in a ZIP archive. If the archive cannot be used, log a warning with the reason and return `None`.

    `name` (of the skill), `url` and `digest` (of the archive) come from the server's list of skills. `digest` is `None` if the list
    contains no digest.
    """
    try:
        if digest is not None and digest_of(data) != digest:
            raise ValueError("the archive has another digest than the index lists")
        if len(data) > limits.max_bytes:
            raise ValueError(f"the archive has {len(data)} bytes, {limits.max_bytes} are allowed")
        return _to_skill(_unpack(data, limits), name, url, limits)
    except (ValueError, OSError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        logger.warning("skill left out reason=%r skill=%s url=%s", str(error), name, url)
        return None


def _unpack(data: bytes, limits: ArchiveLimits) -> dict[str, bytes]:
    if not data.startswith(b"PK"):
        raise ValueError("the file is not a ZIP archive")
    files: dict[str, bytes] = {}
    taken: set[str] = set()
    left = limits.max_unpacked_bytes
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        if len(members) > limits.max_files:
            raise ValueError(f"the archive has {len(members)} files, {limits.max_files} are allowed")
        for member in members:
            path = path_inside(member.filename)
            if not path:
                raise ValueError(f"the archive has a file called {member.filename[:100]!r}")
            with archive.open(member) as source:
                content = source.read(left + 1)  # limits what is unpacked, because the declared size is not trusted
            left -= len(content)
            if left < 0:
                raise ValueError("the unpacked files are too large")
            if path.casefold() not in taken:
                taken.add(path.casefold())
                files[path] = content
    return files


def _to_skill(files: dict[str, bytes], name: str, url: str, limits: ArchiveLimits) -> FileSkill:
    manifests = [path for path in files if is_manifest(path)]
    if not manifests:
        raise ValueError(f"the archive has no {MANIFEST}")
    manifest = min(manifests, key=lambda path: (path.count("/"), path))
    document = parse_skill(files[manifest], directory=name)
    frontmatter = to_frontmatter(document, f"{url}:{manifest}")
    if frontmatter is None:
        raise ValueError(f"the {MANIFEST} in the archive does not describe a skill called {name!r}")
    prefix = manifest[: manifest.rfind("/") + 1]
    below = {path.removeprefix(prefix): data for path, data in sorted(files.items()) if path.startswith(prefix) and is_utf8(data)}
    return FileSkill(
        frontmatter=frontmatter,
        content=document.text,
        path=url,
        resources=[InlineSkillResource(name=path, content=data.decode()) for path, data in below.items() if limits.offer.has(name, path)],
    )
