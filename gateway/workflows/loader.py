"""Reads workflow files (`<name>.workflow.yaml`), and reports mistakes with their lines and keys. Used by `source` and `file_report`.

It parses the file with the shared YAML reader and the models of `definition`, and applies the checks of `file_rules`. It does not import
Python modules that a file names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import ValidationError

from gateway.config.documents import MAX_DOCUMENT_BYTES, DocumentError, load_mapping, read_document
from gateway.config.problems import Problem, keys_of, problems_of
from gateway.config.suggest import did_you_mean
from gateway.errors import WorkflowInvalid
from gateway.json_types import JsonObject, JsonValue, members_of
from gateway.workflows.definition import KINDS, STEP_MODELS, Step, WorkflowFile, step_kind
from gateway.workflows.file_rules import check_workflow

FindingCode = Literal["unreadable", "yaml", "format", "graph"]
"""Kinds of mistakes in a workflow file: it cannot be read, is not valid YAML, has a wrong key or value, or describes an invalid graph."""

SUFFIXES = (".workflow.yaml", ".workflow.yml")
"""File name suffixes by which workflow files are recognized. The first is the usual one."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake in a workflow file."""

    line: int | None
    """Line number of the mistake, from 1; `None` if the mistake concerns the whole file."""
    code: FindingCode
    text: str
    """Description of the mistake, with the key in the file if there is one."""


def load_workflow(path: Path) -> WorkflowFile:
    """Read, parse and check the workflow file at `path`. Blocking.

    Raises:
        WorkflowInvalid: The mistakes that `examine` finds, one per line: `FILE:LINE: KEY: MISTAKE`, without LINE and KEY if unknown.
    """
    file, findings = examine(path)
    if file is None:
        places = [f"{path}:{found.line}" if found.line else str(path) for found in findings]
        raise WorkflowInvalid("\n".join(f"{place}: {found.text}" for place, found in zip(places, findings, strict=True)))
    return file


def examine(path: Path) -> tuple[WorkflowFile | None, list[Finding]]:
    """Read, parse and check the workflow file at `path`. Blocking.

    Return the parsed file and an empty list, or `None` and the mistakes, sorted by line. If a key or value is wrong, the graph is not
    checked; if the text is not valid YAML, only the first mistake is returned.
    """
    try:
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            return None, [Finding(None, "unreadable", f"larger than {MAX_DOCUMENT_BYTES} bytes.")]
        text = read_document(path).decode("utf-8-sig")
        document = load_mapping(text, path=str(path))
    except DocumentError as error:
        return None, [Finding(error.line or None, "unreadable" if error.code == "hard-link" else "yaml", error.reason)]
    except OSError as error:
        return None, [Finding(None, "unreadable", f"cannot be read: {error.strerror or error}.")]
    except UnicodeDecodeError:
        return None, [Finding(None, "unreadable", "is not UTF-8 text.")]
    file, problems = _read(document)
    code: FindingCode = "format"
    if file is not None:
        problems, code = check_workflow(file), "graph"
        if not problems:
            return file, []
    locate = _locator(text)
    return None, sorted((Finding(locate(problem.path), code, problem.line()) for problem in problems), key=lambda found: found.line or 0)


def _read(document: JsonObject) -> tuple[WorkflowFile | None, list[Problem]]:
    problems: list[Problem] = []
    executors = document.get("executors")
    if isinstance(executors, dict):
        steps = {name: _read_step(name, raw, problems) for name, raw in cast("JsonObject", executors).items()}
        document = {**document, "executors": {name: step for name, step in steps.items() if step is not None}}
    try:
        file = WorkflowFile.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        return None, [*problems, *problems_of(error, WorkflowFile)]
    return (None, problems) if problems else (file, [])


def _read_step(name: str, raw: JsonValue, problems: list[Problem]) -> Step | None:
    path = f"executors.{name}"
    kind = step_kind(raw)
    if kind is None:
        hints = [did_you_mean(key, KINDS) for key in members_of(raw) if key not in ("prompt", "arguments", "output")]
        hint = next((text for text in hints if text), "")
        kinds = ", ".join(f"`{key}`" for key in KINDS)
        problems.append(Problem(path, f"needs one of {kinds} to say what it is. {hint}".rstrip()))
        return None
    others = [other for other in KINDS if other != kind and other in raw]
    if others:
        text = f"an executor is one thing, and this one has `{kind}` already; make two executors and an edge"
        problems.append(Problem(f"{path}.{others[0]}", text))
        return None
    model = STEP_MODELS[kind]
    misplaced = [key for key in raw if key not in keys_of(model) and any(key in keys_of(other) for other in STEP_MODELS.values())]
    if misplaced:
        problems.extend(Problem(f"{path}.{key}", f"belongs to another kind of executor, not to `{kind}`") for key in misplaced)
        return None
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        problems.extend(problems_of(error, model, root=path))
        return None


def _locator(text: str) -> Callable[[str], int]:
    """Return a function that returns the line, from 1, of a key path such as `edges[2].to` in the YAML text.

    For a key that the text does not contain, the function returns the line of the nearest enclosing key.
    """
    import yaml

    lines: dict[str, int] = {"": 1}
    node = yaml.compose(text, Loader=cast("type[yaml.SafeLoader]", getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    _note_lines(node, "", lines)

    def locate(path: str) -> int:
        while path not in lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return lines[path]

    return locate


def _note_lines(node: Any, path: str, lines: dict[str, int]) -> None:
    kind = type(node).__name__
    if kind == "MappingNode":
        for key, value in node.value:
            inner = f"{path}.{key.value}" if path else key.value
            lines[inner] = key.start_mark.line + 1
            _note_lines(value, inner, lines)
    elif kind == "SequenceNode":
        for index, value in enumerate(node.value):
            lines[f"{path}[{index}]"] = value.start_mark.line + 1
            _note_lines(value, f"{path}[{index}]", lines)
