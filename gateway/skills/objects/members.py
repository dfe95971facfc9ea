"""Resources and scripts of skills, in code (a value or a function) or in a file.

Functions run in this process, synchronous ones in a worker thread. Script files run only through the runner that the program supplies.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload, runtime_checkable

import anyio.to_thread

from gateway.json_types import JsonObject
from gateway.skills.folders import Changed, read_file
from gateway.skills.objects.skill import FileSkill, ScriptArguments, Skill, SkillResource, SkillScript
from gateway.tools.function import FunctionTool, run_function

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

ScriptArgumentParser = Callable[[ScriptArguments], "Mapping[str, Any] | None"]
"""Function that converts the arguments from a model to named arguments. Used for scripts that are functions."""


class MemberDecorator:
    """A decorator that makes a function a resource or script of a skill. It can be used with or without parentheses."""

    def __init__(
        self, use: Callable[[Callable[..., Any], str | None, str | None], None], check_name: Callable[[str | None], None] | None = None
    ) -> None:
        """`use` receives each decorated function, with the name and the description given in parentheses.

        `check_name` is called first with the name, and raises `ValueError` if the name is illegal.
        """
        self._use = use
        self._check_name = check_name

    @overload
    def __call__(self, func: FunctionT, /) -> FunctionT: ...

    @overload
    def __call__(
        self, func: None = None, *, name: str | None = None, description: str | None = None
    ) -> Callable[[FunctionT], FunctionT]: ...

    def __call__(self, func: Any = None, *, name: str | None = None, description: str | None = None) -> Any:
        """Without parentheses: register the function `func`. With parentheses: return a decorator that registers its function."""
        if self._check_name is not None:
            self._check_name(name)

        def decorate(function: FunctionT) -> FunctionT:
            self._use(function, name, description)
            return function

        return decorate if func is None else decorate(func)


class InlineSkillResource(SkillResource):
    """A resource of a skill that is a text, or a function that returns the content at each read."""

    def __init__(
        self,
        *,
        name: str,
        description: str | None = None,
        content: str | None = None,
        function: Callable[..., object] | None = None,
    ) -> None:
        """Give exactly one of `content` and `function` (synchronous or asynchronous). Raises `ValueError` otherwise."""
        super().__init__(name=name, description=description)
        if (content is None) == (function is None):
            raise ValueError(f"Resource {name!r} needs either content or function, and not both.")
        self.content = content
        self.function = function

    async def read(self, **kwargs: object) -> object:
        """Return the text, or the result of the function. Only a function with `**kwargs` receives `kwargs`."""
        if self.function is None:
            return self.content
        return await run_function(self.function, [], _accepted(self.function, kwargs))


class FileSkillResource(SkillResource):
    """A resource of a skill that is a file in the skill's folder. It is read at each use, and must be UTF-8."""

    def __init__(self, *, name: str, full_path: str, description: str | None = None, root: str | None = None) -> None:
        """The file must be below `root`, by default its own folder, and no link may lead to it."""
        super().__init__(name=name, description=description)
        self.full_path = _absolute(full_path)
        self._root = root or os.path.dirname(self.full_path)

    async def read(self, **kwargs: object) -> object:
        """Return the text of the file as it is now.

        Raises:
            ValueError: The file is gone, is not a regular file, was replaced by a link, or is not UTF-8.
        """
        data = await anyio.to_thread.run_sync(read_below, self._root, self.full_path)
        return data.decode("utf-8")


class ScriptRefused(TypeError, ValueError):
    """A script was not run because its arguments or its setup are wrong. The text may be shown to the model."""


class InlineSkillScript(SkillScript):
    """A script of a skill that is a Python function. It runs in this process, without a `SkillScriptRunner`."""

    def __init__(
        self,
        *,
        name: str,
        description: str | None = None,
        function: Callable[..., object],
        argument_parser: ScriptArgumentParser | None = None,
    ) -> None:
        """`argument_parser` converts the model's arguments to named arguments; without it the arguments must be an object."""
        super().__init__(name=name, description=description)
        self.function = function
        self.argument_parser = argument_parser
        self._schema: JsonObject | None = None

    @property
    def parameters_schema(self) -> JsonObject | None:
        """JSON Schema of the function's parameters, made at first use; `None` for a function without parameters."""
        if self._schema is None:
            self._schema = FunctionTool(_without_rest(self.function), name="script").definition.input_schema
        return self._schema if self._schema.get("properties") else None

    async def run(self, skill: Skill, args: ScriptArguments = None, **kwargs: object) -> object:
        """Call the function with `args` by name and return its result.

        Raises:
            TypeError: `args` is not an object, does not fit the signature, or names a parameter that the host program fills.
        """
        given = self.argument_parser(args) if self.argument_parser is not None else args
        if given is not None and not isinstance(given, Mapping):
            raise ScriptRefused(f"Script {self.name!r} needs an object of named arguments, not {type(given).__name__}.")
        named = dict(given or {})
        own = _accepted(self.function, kwargs)
        if clash := sorted(named.keys() & own.keys()):
            raise ScriptRefused(f"Script {self.name!r}: the host sets {', '.join(clash)}; leave it out.")
        try:
            inspect.signature(self.function).bind(**named, **own)
        except TypeError as error:
            raise ScriptRefused(f"Script {self.name!r}: {error}.") from None
        return await run_function(self.function, [], {**named, **own})


@runtime_checkable
class SkillScriptRunner(Protocol):
    """Runs the script files of skills, for example in a sandbox or a container. May be synchronous or asynchronous."""

    def __call__(self, skill: FileSkill, script: FileSkillScript, args: ScriptArguments = None) -> object:
        """Return the result for the model, or an awaitable of it. `args` are passed exactly as the model gave them."""
        ...


class FileSkillScript(SkillScript):
    """A script of a skill that is a file in the skill's folder. A `SkillScriptRunner` runs it."""

    def __init__(
        self,
        *,
        name: str,
        description: str | None = None,
        full_path: str,
        runner: SkillScriptRunner | None = None,
        root: str | None = None,
    ) -> None:
        """The file must be below `root`, by default its own folder, and no link may lead to it.

        Raises:
            ValueError: The name is blank, or the path is not absolute.
        """
        super().__init__(name=name, description=description)
        self.full_path = _absolute(full_path)
        self._runner = runner
        self._root = root or os.path.dirname(self.full_path)

    @property
    def parameters_schema(self) -> JsonObject | None:
        """JSON Schema of the arguments of a script file: an array of strings, the words of a command line."""
        return {"type": "array", "items": {"type": "string"}}

    async def run(self, skill: Skill, args: ScriptArguments = None, **kwargs: object) -> object:
        """Run the script with the runner and return its result.

        Raises:
            TypeError: `skill` is not a `FileSkill`.
            ValueError: The runner is missing, or the file was replaced by a link since it was found.
        """
        if not isinstance(skill, FileSkill):
            raise ScriptRefused(f"Script {self.name!r} is a file and needs a FileSkill, not {type(skill).__name__}.")
        if self._runner is None:
            raise ScriptRefused(f"Script {self.name!r} needs a runner; pass `script_runner` to the source of this skill.")
        await anyio.to_thread.run_sync(read_below, self._root, self.full_path)
        result = self._runner(skill, self, args)
        return await result if inspect.isawaitable(result) else result


def read_below(root: str, path: str) -> bytes:
    """Return the bytes of a regular file below `root`, reached without following a link.

    Raises:
        ValueError: The file is not below `root`, is gone, or is behind a link.
    """
    below = os.path.relpath(path, root)
    segments = tuple(below.split(os.sep))
    if os.pardir in segments or os.path.isabs(below):
        raise ValueError(f"{os.path.basename(path)!r} is outside the folder of its skill.")
    try:
        return read_file(root, segments)[0]
    except Changed:
        raise ValueError(f"{os.path.basename(path)!r} cannot be read: it is missing, not a regular file, or behind a link.") from None


def _absolute(path: str) -> str:
    if not path.strip() or not os.path.isabs(path):
        raise ValueError(f"full_path must be an absolute path, not {path!r}.")
    return str(Path(path))


def _accepted(function: Callable[..., object], kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return `kwargs`, the values of the host program, if the function accepts `**kwargs`; otherwise an empty dict."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}  # a builtin without a signature
    return dict(kwargs) if any(p.kind is p.VAR_KEYWORD for p in parameters) else {}


def _without_rest(function: Callable[..., object]) -> Callable[..., object]:
    """Return a stand-in for the function whose signature lacks `*args` and `**kwargs`, for a schema of the parameters that models fill."""
    signature = inspect.signature(function)
    kept = [p for p in signature.parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]

    def stand_in() -> None: ...

    functools.update_wrapper(stand_in, function)
    stand_in.__signature__ = signature.replace(parameters=kept)
    return stand_in
