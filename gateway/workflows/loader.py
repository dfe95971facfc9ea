"""Reading `<name>.workflow.yaml` with every mistake named by line and key.

Puts together the shared YAML reader, the models of `definition` and the judgement of `checks`; imports and builds
nothing that a file names (`steps`). Called by `source`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from gateway.config.documents import MAX_DOCUMENT_BYTES, DocumentError, load_mapping
from gateway.config.problems import Problem, keys_of, problems_of
from gateway.config.suggest import did_you_mean
from gateway.errors import WorkflowInvalid
from gateway.json_types import JsonObject, JsonValue
from gateway.workflows.checks import check_workflow
from gateway.workflows.definition import KINDS, STEP_MODELS, Step, WorkflowFile, step_kind

SUFFIXES = (".workflow.yaml", ".workflow.yml")
"""Endings of workflow files."""


def load_workflow(path: Path) -> WorkflowFile:
    """Read one file. Blocking.

    Raises:
        WorkflowInvalid: All that is wrong with it, one line each: `FILE:LINE: KEY: MISTAKE`.
    """
    try:
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            raise WorkflowInvalid(f"{path}: larger than {MAX_DOCUMENT_BYTES} bytes.")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise WorkflowInvalid(f"{path}: cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise WorkflowInvalid(f"{path}: is not UTF-8 text.") from None
    return parse_workflow(text, name=str(path))


def parse_workflow(text: str, *, name: str = "workflow.yaml") -> WorkflowFile:
    """Read the text of a file called `name`.

    Raises:
        WorkflowInvalid: As `load_workflow`.
    """
    try:
        document = load_mapping(text, path=name)
    except DocumentError as error:
        place = f"{name}:{error.line}" if error.line else name
        raise WorkflowInvalid(f"{place}: {str(error).removeprefix(f'Line {error.line}: ')}") from None
    file, problems = _read(document)
    if file is not None:
        problems = check_workflow(file)
        if not problems:
            return file
    locate = _locator(text)
    lines = [(locate(problem.path), problem.line()) for problem in problems]
    raise WorkflowInvalid("\n".join(f"{name}:{line}: {said}" for line, said in sorted(lines, key=lambda item: item[0])))


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
        raw_keys = list(cast("JsonObject", raw)) if isinstance(raw, dict) else []
        hints = [did_you_mean(key, KINDS) for key in raw_keys if key not in ("prompt", "arguments", "output")]
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
    """A function from a path such as `edges[2].to` to its line, or to that of the nearest key around it."""
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
