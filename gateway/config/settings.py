"""`load_settings` and `SecretString`: read the settings of a program that uses Moongate as a library.

Values come from the program itself, a `.env` file and environment variables. The class, the function and its parameters are named as in
agent-framework.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gateway.env_file import read_env_file
from gateway.errors import SettingNotFoundError

SettingsT = TypeVar("SettingsT")

_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False, "": False}


class SecretString(str):
    """A string whose `repr` hides its value. In all other respects it is an ordinary string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "SecretString('**********')"

    def get_secret_value(self) -> str:
        """Return the value as an ordinary string."""
        return str.__str__(self)


def load_settings(
    settings_type: type[SettingsT],
    *,
    env_prefix: str = "",
    env_file_path: str | os.PathLike[str] | None = None,
    env_file_encoding: str | None = None,
    required_fields: Sequence[str | tuple[str, ...]] | None = None,
    **overrides: object,
) -> SettingsT:
    """Return a `TypedDict` of type `settings_type` with a value for each field.

    The value of a field is the first of these that exists: the argument of the same name in `overrides` (`None` counts as absent), the
    variable `<env_prefix><FIELD>` in the `.env` file, this variable in the environment, and `None`. The text of a variable is converted to
    the field's type: `int`, `float`, `bool` or `SecretString`.

    Each item of `required_fields` is the name of a field that must have a value, or a tuple of fields of which exactly one must have one.

    Raises:
        FileNotFoundError: `env_file_path` was given and the file does not exist.
        SettingNotFoundError: A required field has no value, or no field or several fields of a tuple have a value.
        ValueError: A value does not have the field's type; the message names the field or variable.
    """
    file = read_env_file(env_file_path, env_file_encoding) if env_file_path is not None else {}
    hints = get_type_hints(settings_type)
    settings: dict[str, object] = {}
    for name, hint in hints.items():
        variable = f"{env_prefix}{name.upper()}"
        given = overrides.get(name)
        text = file.get(variable, os.environ.get(variable))
        if given is not None:
            settings[name] = _checked(given, hint, name)
        elif text is not None:
            settings[name] = _read(text, hint, variable)
        else:
            settings[name] = None
    _check_required(required_fields or (), settings, env_prefix)
    return cast("SettingsT", settings)


def _kinds(hint: object) -> list[object]:
    """Return the types that the annotation `hint` of a setting allows, without `None`."""
    return [arm for arm in get_args(hint) if arm is not NoneType] if get_origin(hint) in (Union, UnionType) else [hint]


def _read(text: str, hint: object, variable: str) -> object:
    """Convert the text of a variable to the first of the field's types that accepts it. Raises `ValueError` if no type does."""
    problem = ""
    for kind in _kinds(hint):
        try:
            if isinstance(kind, type) and issubclass(kind, SecretString):
                return kind(text)
            if kind is bool:
                return _WORDS[text.strip().lower()]
            if kind is int or kind is float:
                return cast("Callable[[str], object]", kind)(text)
            return text
        except (ValueError, KeyError):
            problem = f"{variable} is {text!r}, which is not of type {getattr(kind, '__name__', kind)}."
    raise ValueError(problem)


def _checked(value: object, hint: object, name: str) -> object:
    """Return a value that the program passed for the field `name` after checking its type. Raises `ValueError` for another type.

    For a `SecretString` field, a string is converted. A callable is accepted for any field, and any value for a type that is not a class.
    """
    kinds = _kinds(hint)
    classes = tuple(kind for kind in kinds if isinstance(kind, type))
    if isinstance(value, str) and any(issubclass(kind, SecretString) for kind in classes):
        return value if isinstance(value, SecretString) else SecretString(value)
    if callable(value) or len(classes) < len(kinds) or isinstance(value, classes):
        return value
    if isinstance(value, int) and float in classes:
        return value
    allowed = " or ".join(kind.__name__ for kind in classes)
    raise ValueError(f"Setting {name!r} must be {allowed}, not {type(value).__name__}.")


def _check_required(required: Sequence[str | tuple[str, ...]], settings: Mapping[str, Any], env_prefix: str) -> None:
    for entry in required:
        names = (entry,) if isinstance(entry, str) else entry
        present = [name for name in names if settings.get(name) is not None]
        if isinstance(entry, str) and not present:
            text = f"Setting {entry!r} is required: pass {entry}=, or set the environment variable {env_prefix}{entry.upper()}."
            raise SettingNotFoundError(text, path=entry)
        if len(present) != 1:
            among = ", ".join(repr(name) for name in names)
            which = f"; set are {', '.join(present)}" if present else "; none is set"
            raise SettingNotFoundError(f"Exactly one of {among} must be set{which}.", path=names[0])
