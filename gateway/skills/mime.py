"""MIME types of skill files by file name extension, from a fixed table, so that they are the same on every machine.

The type of a file with an unknown extension depends on whether its content is text. `reader`, `remote` and `code` use this module.
"""

from __future__ import annotations

MARKDOWN = "text/markdown"

SCRIPT_SUFFIXES = frozenset({"bash", "bat", "cjs", "js", "mjs", "php", "pl", "ps1", "py", "r", "rb", "sh", "ts", "zsh"})
"""File name extensions (without dot) of scripts. A file without one of these is a script only if it begins with `#!`."""

_TYPES = {
    "bash": "application/x-sh",
    "bmp": "image/bmp",
    "c": "text/x-c",
    "cjs": "text/javascript",
    "css": "text/css",
    "csv": "text/csv",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "gif": "image/gif",
    "gz": "application/gzip",
    "html": "text/html",
    "ico": "image/vnd.microsoft.icon",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "js": "text/javascript",
    "json": "application/json",
    "jsonl": "application/jsonl",
    "md": MARKDOWN,
    "mjs": "text/javascript",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "otf": "font/otf",
    "pdf": "application/pdf",
    "png": "image/png",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "py": "text/x-python",
    "sh": "application/x-sh",
    "sql": "application/sql",
    "svg": "image/svg+xml",
    "tar": "application/x-tar",
    "toml": "application/toml",
    "ts": "text/x-typescript",
    "tsv": "text/tab-separated-values",
    "ttf": "font/ttf",
    "txt": "text/plain",
    "wasm": "application/wasm",
    "wav": "audio/wav",
    "webp": "image/webp",
    "woff": "font/woff",
    "woff2": "font/woff2",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "zip": "application/zip",
    "zsh": "application/x-sh",
}


def suffix_of(path: str) -> str:
    """Return the last extension of a file name in lower case, without its dot; empty for a name without extension."""
    name = path.rsplit("/", 1)[-1]
    return name.rpartition(".")[2].lower() if "." in name.lstrip(".") else ""


def mime_type_of(path: str, *, is_text: bool) -> str:
    """Return the MIME type of a file by its extension. If the extension is unknown, `is_text` selects a general type for text or bytes."""
    return _TYPES.get(suffix_of(path)) or ("text/plain" if is_text else "application/octet-stream")
