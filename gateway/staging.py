"""Decorators `experimental` and `release_candidate`, which mark classes and functions that may still change.

The first use of each experimental feature in a process issues a warning; a release candidate only has a note in its docstring. The
attributes `__feature_stage__` and `__feature_id__` are informational: they disappear when a feature becomes stable.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from enum import Enum, StrEnum
from types import FrameType
from typing import Any, Literal, TypeVar, cast

StagedT = TypeVar("StagedT", bound=Callable[..., Any])
FeatureStageName = Literal["experimental", "release_candidate"]


class ExperimentalFeature(StrEnum):
    """Ids of experimental features, which may change in any release.

    `@experimental(feature_id=ID)` marks the classes and functions of a feature; warnings about their use contain the id. The ids that have
    a description are experimental features of Moongate. The other ids are agent-framework's: in Moongate, these features are stable, and
    using them issues no warning.
    """

    AGENT_HOOKS = "AGENT_HOOKS"
    COMPUTER_USE = "COMPUTER_USE"
    DECLARATIVE_AGENTS = "DECLARATIVE_AGENTS"
    EVALS = "EVALS"
    """Id of the experimental feature "evaluation of agents": the command `moongate eval` and the classes of its test cases."""
    FIDES = "FIDES"
    FILE_HISTORY = "FILE_HISTORY"
    FOUNDRY_PREVIEW_TOOLS = "FOUNDRY_PREVIEW_TOOLS"
    FOUNDRY_TOOLS = "FOUNDRY_TOOLS"
    FUNCTIONAL_WORKFLOWS = "FUNCTIONAL_WORKFLOWS"
    HARNESS = "HARNESS"
    LIFECYCLE_HOOKS = "LIFECYCLE_HOOKS"
    """Id of the experimental feature "lifecycle hooks" (`LifecycleHooks`): functions that are called during an agent's run."""
    MCP_LONG_RUNNING_TASKS = "MCP_LONG_RUNNING_TASKS"
    MCP_SKILLS = "MCP_SKILLS"
    PROGRESSIVE_TOOLS = "PROGRESSIVE_TOOLS"
    SECURITY = "SECURITY"
    """Id of the experimental feature "security": `gateway.security`, which labels tool results. Agent-framework's id for it is `FIDES`."""
    SESSION_STORE = "SESSION_STORE"
    SKILLS = "SKILLS"
    TO_PROMPT_AGENT = "TO_PROMPT_AGENT"
    VECTOR_STORES = "VECTOR_STORES"


class ReleaseCandidateFeature(StrEnum):
    """Ids of features that change only by small corrections (release candidates). Currently, the enumeration has no member."""


class FeatureStageWarning(FutureWarning):
    """Base class of warnings about features that may still change."""


class ExperimentalWarning(FeatureStageWarning):
    """Warning that a program uses an experimental feature."""


_EXPERIMENTAL_NOTE = "\n\nExperimental: may change or be removed in any release."
_CANDIDATE_NOTE = "\n\nRelease candidate: expect only small corrections."

_warned: set[tuple[type[Warning], str]] = set()
"""Category and feature id of the warnings issued so far. The set is global, because each warning is issued once per process."""


def experimental(*, feature_id: ExperimentalFeature | str) -> Callable[[StagedT], StagedT]:
    """Return a decorator that marks a class or function as experimental.

    The first use of any class or function with this `feature_id` issues a warning. A `typing.Protocol` class issues no warning.
    """
    return _stage("experimental", feature_id, _EXPERIMENTAL_NOTE, ExperimentalWarning)


def release_candidate(*, feature_id: ReleaseCandidateFeature | str) -> Callable[[StagedT], StagedT]:
    """Return a decorator that marks a class or function as a release candidate: almost stable, and without a warning."""
    return _stage("release_candidate", feature_id, _CANDIDATE_NOTE, None)


def _stage(stage: FeatureStageName, feature: Enum | str, note: str, category: type[Warning] | None) -> Callable[[StagedT], StagedT]:
    feature_id = str(feature.value if isinstance(feature, Enum) else feature)

    def mark(given: StagedT) -> StagedT:
        thing = cast("Any", given)
        wrapper = cast("Any", type(thing)) if type(thing) in (staticmethod, classmethod) else None
        target: Any = thing.__func__ if wrapper is not None else thing
        if not callable(target):
            raise TypeError(f"{stage} marks classes and functions, not {given!r}.")
        is_protocol = isinstance(target, type) and bool(getattr(target, "_is_protocol", False))
        marked: Any = target
        if category is not None and not is_protocol:
            name = str(getattr(target, "__qualname__", target))
            text = f"[{feature_id}] {name} is experimental and may change or be removed in future versions without notice."
            warn = functools.partial(_warn_once, category, feature_id, text)
            marked = _class_that_warns(cast("type[Any]", target), warn) if isinstance(target, type) else _function_that_warns(target, warn)
        if marked.__doc__:
            marked.__doc__ = inspect.cleandoc(marked.__doc__) + note
        if not is_protocol:  # implementations of a protocol would need the attribute
            marked.__feature_stage__ = stage
            marked.__feature_id__ = feature_id
        return cast("StagedT", wrapper(marked) if wrapper is not None else marked)

    return mark


def _class_that_warns(kind: type[Any], warn: Callable[[], None]) -> type[Any]:
    """Change the class `kind` to warn when it is instantiated or subclassed, and return it. Instances of a subclass do not warn again."""
    new: Any = kind.__new__
    init_subclass: Any = kind.__init_subclass__

    @functools.wraps(new)
    def __new__(cls: type[Any], /, *args: Any, **kwargs: Any) -> Any:
        if cls is kind:
            warn()
        if new is not object.__new__:
            return new(cls, *args, **kwargs)
        if cls.__init__ is object.__init__ and (args or kwargs):
            raise TypeError(f"{cls.__name__}() takes no arguments")
        return new(cls)

    @functools.wraps(getattr(init_subclass, "__func__", init_subclass))
    def __init_subclass__(cls: type[Any], /, **kwargs: Any) -> None:
        warn()
        inherited = getattr(init_subclass, "__func__", None)
        if inherited is not None:
            inherited(cls, **kwargs)
        else:
            super(kind, cls).__init_subclass__(**kwargs)

    vars_of: Any = kind  # a type checker rejects assignments to a class's constructors
    vars_of.__new__ = staticmethod(__new__)
    vars_of.__init_subclass__ = classmethod(__init_subclass__)
    return kind


def _function_that_warns(function: Callable[..., Any], warn: Callable[[], None]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def asynchronous(*args: Any, **kwargs: Any) -> Any:
            warn()
            return await function(*args, **kwargs)

        return asynchronous

    @functools.wraps(function)
    def synchronous(*args: Any, **kwargs: Any) -> Any:
        warn()
        return function(*args, **kwargs)

    return synchronous


def _warn_once(category: type[Warning], feature_id: str, text: str) -> None:
    if (category, feature_id) in _warned:
        return
    frame = _first_frame_outside()
    if frame is None:
        warnings.warn(text, category, stacklevel=3)
    else:
        module = str(frame.f_globals.get("__name__", "<unknown>"))
        warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno, module)
    _warned.add((category, feature_id))


def _first_frame_outside() -> FrameType | None:
    """Return the frame of the code that used an experimental feature, to name it in the warning; `None` if no such frame exists.

    It is the innermost frame outside this module and outside packages such as `asyncio`, which only pass calls on (`_MACHINERY`).
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # the public way also reads source lines
    while frame is not None and (frame.f_code.co_filename == __file__ or _package_of(frame) in _MACHINERY):
        frame = frame.f_back
    return frame


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


_MACHINERY = {"abc", "anyio", "asyncio", "contextlib", "functools", "typing"}
"""Packages that may call a feature on the user's behalf: `asyncio.run(…)` calls the event loop, which runs a coroutine as a task."""
