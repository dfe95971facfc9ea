"""Resources and scripts of skills: in code (a value or a function) or in a file.

Functions run in this process, sync ones in a worker thread; files are read here, but run only by the runner that the
program supplies. Members belong to a skill and know nothing of models or tools.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import anyio.to_thread

from gateway.json_types import JsonObject
from gateway.skills.files import Changed, read_file
from gateway.skills.objects.skill import FileSkill, ScriptArguments, Skill, SkillResource, SkillScript
from gateway.tools.function import FunctionTool, run_function

ScriptArgumentParser = Callable[[ScriptArguments], "Mapping[str, Any] | None"]
"""Turns what a model gave into named arguments, for scripts in code."""


class InlineSkillResource(SkillResource):
    """A text, or a function that gives anything each time it is read."""

    def __init__(
        self,
        *,
        name: str,
        description: str | None = None,
        content: str | None = None,
        function: Callable[..., object] | None = None,
    ) -> None:
        """Exactly one of `content` and `function` (sync or async). Raises `ValueError` otherwise."""
        super().__init__(name=name, description=description)
        if (content is None) == (function is None):
            raise ValueError(f"Resource {name!r} needs either content or function, and not both.")
        self.content = content
        self.function = function

    async def read(self, **kwargs: object) -> object:
        """The text, or what the function returns; `kwargs` reach only a function that takes `**kwargs`."""
        if self.function is None:
            return self.content
        return await run_function(self.function, [], _accepted(self.function, kwargs))


class FileSkillResource(SkillResource):
    """A file of a skill's folder, read as UTF-8 when asked for."""

    def __init__(self, *, name: str, full_path: str, description: str | None = None, root: str | None = None) -> None:
        """`root` is the folder that the file must stay in, without links on the way; by default its own."""
        super().__init__(name=name, description=description)
        self.full_path = _absolute(full_path)
        self._root = root or os.path.dirname(self.full_path)

    async def read(self, **kwargs: object) -> object:
        """The text as it is now.

        Raises:
            ValueError: The file is gone, is no regular file, was swapped for a link, or is not UTF-8.
        """
        data = await anyio.to_thread.run_sync(read_below, self._root, self.full_path)
        return data.decode("utf-8")


class ScriptRefused(TypeError, ValueError):
    """A script was not run because of how it was called; the text is fit for the model."""


class InlineSkillScript(SkillScript):
    """A function in this process; it never goes through a runner."""

    def __init__(
        self,
        *,
        name: str,
        description: str | None = None,
        function: Callable[..., object],
        argument_parser: ScriptArgumentParser | None = None,
    ) -> None:
        """`argument_parser` turns what a model gave into named arguments; without it only objects are taken."""
        super().__init__(name=name, description=description)
        self.function = function
        self.argument_parser = argument_parser
        self._schema: JsonObject | None = None

    @property
    def parameters_schema(self) -> JsonObject | None:
        """From the function's signature, read at first use; `None` for a function without parameters."""
        if self._schema is None:
            self._schema = FunctionTool(_without_rest(self.function), name="script").definition.input_schema
        return self._schema if self._schema.get("properties") else None

    async def run(self, skill: Skill, args: ScriptArguments = None, **kwargs: object) -> object:
        """Call the function with `args` by name.

        Raises:
            TypeError: `args` are no object, do not fit, or name a value of the host.
        """
        given = self.argument_parser(args) if self.argument_parser is not None else args
        if given is not None and not isinstance(given, Mapping):
            raise ScriptRefused(f"Script {self.name!r} takes an object of named arguments, not {type(given).__name__}.")
        named = dict(given or {})
        own = _accepted(self.function, kwargs)
        if clash := sorted(named.keys() & own.keys()):
            raise ScriptRefused(f"Script {self.name!r}: {', '.join(clash)} is set by the host and cannot be given.")
        try:
            inspect.signature(self.function).bind(**named, **own)
        except TypeError as error:
            raise ScriptRefused(f"Script {self.name!r}: {error}.") from None
        return await run_function(self.function, [], {**named, **own})


@runtime_checkable
class SkillScriptRunner(Protocol):
    """Runs the script files of skills: in a sandbox, a container, wherever the program decides. Sync or async."""

    def __call__(self, skill: FileSkill, script: FileSkillScript, args: ScriptArguments = None) -> object:
        """The result for the model, or an awaitable of it; `args` are exactly what the model gave."""
        ...


class FileSkillScript(SkillScript):
    """A script file of a skill's folder; a runner decides how it runs."""

    def __init__(
        self,
        *,
        name: str,
        description: str | None = None,
        full_path: str,
        runner: SkillScriptRunner | None = None,
        root: str | None = None,
    ) -> None:
        """`root` is the folder that the file must stay in, without links on the way; by default its own.

        Raises:
            ValueError: A blank name, or a path that is not absolute.
        """
        super().__init__(name=name, description=description)
        self.full_path = _absolute(full_path)
        self._runner = runner
        self._root = root or os.path.dirname(self.full_path)

    @property
    def parameters_schema(self) -> JsonObject | None:
        """An array of texts: the words of a command line."""
        return {"type": "array", "items": {"type": "string"}}

    async def run(self, skill: Skill, args: ScriptArguments = None, **kwargs: object) -> object:
        """Hand the script to the runner.

        Raises:
            TypeError: `skill` does not come from files.
            ValueError: There is no runner, or the file was swapped for a link since it was found.
        """
        if not isinstance(skill, FileSkill):
            raise ScriptRefused(f"Script {self.name!r} is a file and needs a FileSkill, not {type(skill).__name__}.")
        if self._runner is None:
            raise ScriptRefused(f"Script {self.name!r} needs a runner; none is configured for the scripts of this skill.")
        await anyio.to_thread.run_sync(read_below, self._root, self.full_path)
        result = self._runner(skill, self, args)
        return await result if inspect.isawaitable(result) else result


def read_below(root: str, path: str) -> bytes:
    """Return the bytes of a regular file with one name, reached from `root` without following a link.

    Raises:
        ValueError: It is not below `root`, is gone, or is or leads through a link.
    """
    below = os.path.relpath(path, root)
    segments = tuple(below.split(os.sep))
    if os.pardir in segments or os.path.isabs(below):
        raise ValueError(f"{os.path.basename(path)!r} is outside the folder of its skill.")
    try:
        return read_file(root, segments)[0]
    except Changed:
        raise ValueError(f"{os.path.basename(path)!r} cannot be read: it is gone, not a regular file, or a link.") from None


def _absolute(path: str) -> str:
    if not path.strip() or not os.path.isabs(path):
        raise ValueError(f"full_path must be an absolute path, not {path!r}.")
    return str(Path(path))


def _accepted(function: Callable[..., object], kwargs: Mapping[str, object]) -> dict[str, object]:
    """The host's values, for a function that takes `**kwargs`; nothing for any other."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}  # a builtin that does not say
    return dict(kwargs) if any(p.kind is p.VAR_KEYWORD for p in parameters) else {}


def _without_rest(function: Callable[..., object]) -> Callable[..., object]:
    """A stand-in with the same signature but `*args` and `**kwargs`, which models never fill."""
    signature = inspect.signature(function)
    kept = [p for p in signature.parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]

    def stand_in() -> None: ...

    functools.update_wrapper(stand_in, function)
    stand_in.__signature__ = signature.replace(parameters=kept)
    return stand_in
