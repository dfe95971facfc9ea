"""Fetches the secrets to which `${…}` references refer: from a file, the system's keyring, or the output of a program.

`expand` finds the references and decides where they are allowed. A program runs at most once per load of the configuration, without a
shell; its output and its stderr are never shown. `keyring` is an optional extra, because on a server nobody can unlock a keyring.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from gateway.config.models import SecretCommand
from gateway.config.suggest import did_you_mean
from gateway.errors import ConfigError
from gateway.json_types import JsonValue
from gateway.processes import ProcessTree, tree_of

MAX_SECRET_BYTES = 65_536
"""Maximum size of a secret; a larger value is an error."""

KILL_WAIT_SECONDS = 2.0
"""Maximum seconds to wait until a killed program has ended."""


class NotAccepted(ConfigError):
    """Error: a program that outputs a secret may not run until a person accepts it. `key` is its name for `moongate lock --accept`."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


@dataclass(slots=True)
class References:
    """Fetches the secrets to which one configuration refers, from files, the keyring and programs. Stores the outputs of programs."""

    environ: Mapping[str, str]
    """Environment variables of the programs that are run."""
    base_dir: Path
    """Folder against which relative paths are resolved, and in which programs run."""
    commands: Mapping[str, JsonValue] = field(default_factory=lambda: cast("dict[str, JsonValue]", {}))
    """Section `secrets` of the configuration: name of a program → its settings, not validated."""
    fetches: bool = True
    """If false, no program runs and the keyring is not read; references to programs and to the keyring stay as they are written."""
    refusal: Callable[[str, JsonValue], str | None] = lambda name, written: None
    """Function that receives the name and settings of a program, and returns why the program may not run; `None` if it may."""
    _answers: dict[str, str | ConfigError] = field(default_factory=lambda: cast("dict[str, str | ConfigError]", {}))

    def file(self, name: str, path: str) -> str:
        """Return the text of the file `name` without trailing line breaks. `path` is the JSON path of the reference, for errors.

        Raises:
            ConfigError: The file cannot be read, is too large or is not text.
        """
        source = self.base_dir / Path(name).expanduser()
        try:
            with source.open("rb") as stream:
                return _text(stream.read(MAX_SECRET_BYTES + 1), f"file {name!r}", path)
        except OSError as error:
            raise ConfigError(f"file {name!r} cannot be read: {error.strerror or 'unknown reason'}.", path=path) from None

    def keyring(self, name: str, path: str) -> str:
        """Return a password from the system's keyring. `name` is `SERVICE/USER`; the last `/` separates the two.

        `path` is the JSON path of the reference, for errors. If `fetches` is false, the reference itself is returned.

        Raises:
            ConfigError: `name` is malformed, the keyring cannot be read or has no such password, or the extra `keyring` is not installed.
        """
        service, slash, user = name.rpartition("/")
        if not slash or not service or not user:
            raise ConfigError(f"`${{keyring:{name}}}` needs a service and a user: `${{keyring:SERVICE/USER}}`.", path=path)
        if not self.fetches:
            return f"${{keyring:{name}}}"
        try:
            import keyring
            import keyring.errors
        except ImportError:
            raise ConfigError("`${keyring:…}` needs the extra `keyring`: install `moongate[keyring]`.", path=path) from None
        try:
            value = keyring.get_password(service, user)
        except (keyring.errors.KeyringError, RuntimeError) as error:
            has_none = isinstance(error, keyring.errors.NoKeyringError)
            reason = "this machine has no keyring; use" if has_none else "it is locked or not available; unlock it, or use"
            raise ConfigError(f"the keyring cannot be read: {reason} `${{file:PATH}}`.", path=path) from None
        if not value:
            fix = f"set it: `keyring set {service} {user}`"
            raise ConfigError(f"the keyring has no password for {user!r} of {service!r}; {fix}.", path=path)
        return value

    def command(self, name: str, path: str) -> str:
        """Return the output of the program under `secrets.<name>` without trailing line breaks. The program runs only once.

        `path` is the JSON path of the reference, for errors. If `fetches` is false, the reference itself is returned.

        Raises:
            ConfigError: The program is not configured, failed, exceeded its timeout, or printed nothing, too much or no text. The message
                never contains its output.
            NotAccepted: A person must accept the program first.
        """
        if not self.fetches:
            self._settings(name)
            return f"${{cmd:{name}}}"
        if name not in self._answers:
            try:
                self._answers[name] = self._run(name)
            except ConfigError as error:
                self._answers[name] = error
        answer = self._answers[name]
        if isinstance(answer, NotAccepted):
            raise answer
        if isinstance(answer, ConfigError):
            raise ConfigError(str(answer), path=path)
        return answer

    def _settings(self, name: str) -> SecretCommand:
        written = self.commands.get(name)
        if written is None:
            raise ConfigError(f"`${{cmd:{name}}}` names no program under `secrets`. {did_you_mean(name, self.commands)}".rstrip())
        try:
            return SecretCommand.model_validate(written)
        except ValidationError:
            raise ConfigError(f'secrets.{name} must be like `{{"command": ["program", "argument"]}}`.') from None

    def _run(self, name: str) -> str:
        settings = self._settings(name)
        if (refusal := self.refusal(name, self.commands[name])) is not None:
            raise NotAccepted(refusal, key=f"secrets.{name}")
        what = f"the program of secrets.{name} ({settings.command[0]!r})"
        try:
            process = subprocess.Popen(
                settings.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self.base_dir,
                env=dict(self.environ),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "an argument has a NUL character"
            raise ConfigError(f"{what} cannot be started: {reason or 'unknown reason'}.") from None
        data = _read_output(process, tree_of(process.pid), settings.timeout_seconds)
        if data is None:
            raise ConfigError(f"{what} did not end within {settings.timeout_seconds:g} s.")
        if len(data) <= MAX_SECRET_BYTES and process.returncode != 0:
            raise ConfigError(f"{what} failed with exit code {process.returncode}; run it by hand to see why.")
        text = _text(data, f"the output of {what}", "")
        if not text:
            raise ConfigError(f"{what} printed nothing.")
        return text


def _read_output(process: subprocess.Popen[bytes], tree: ProcessTree, timeout_seconds: float) -> bytes | None:
    """Return the standard output of a program, cut after `MAX_SECRET_BYTES` + 1 bytes; `None` if the program exceeds the timeout.

    A program that has not ended is killed before this function returns (see `_kill`).
    """
    assert process.stdout is not None
    pipe = process.stdout
    seen: list[bytes] = []
    ended = threading.Event()

    def read() -> None:
        with contextlib.suppress(OSError, ValueError):
            seen.append(pipe.read(MAX_SECRET_BYTES + 1))
            if len(seen[0]) <= MAX_SECRET_BYTES:
                process.wait()
        ended.set()

    reader = threading.Thread(target=read, daemon=True, name="secret-command")
    reader.start()
    in_time = ended.wait(timeout_seconds)
    _kill(process, tree)
    reader.join(KILL_WAIT_SECONDS)
    if not reader.is_alive():
        pipe.close()
    return seen[0] if in_time and seen else None


def _kill(process: subprocess.Popen[bytes], tree: ProcessTree) -> None:
    """Kill a program and the processes that it started; wait up to `KILL_WAIT_SECONDS` for its end."""
    tree.kill()
    if process.poll() is None:
        process.kill()  # on Windows, the tree has no processes if the system refused the job
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_WAIT_SECONDS)


def _text(data: bytes, what: str, path: str) -> str:
    if len(data) > MAX_SECRET_BYTES:
        raise ConfigError(f"{what} is larger than {MAX_SECRET_BYTES} bytes.", path=path)
    try:
        return data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{what} is not UTF-8 text.", path=path) from None
