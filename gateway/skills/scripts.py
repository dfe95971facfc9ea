"""`ScriptRunner`: decides which script files of skills may run, selects the interpreter, and runs them in the sandbox.

A script runs only if the configuration grants it by its name and by the digest of all files of the skill. The sandbox runs a copy of
exactly the files with this digest. Arguments are passed without a shell. The call's approval, if needed, is requested
earlier, by `gateway.gate`. `run_tool` uses this module.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import NoReturn, cast

from gateway.config.skill_settings import ScriptGrant, ScriptSettings
from gateway.errors import SkillError
from gateway.json_types import JsonMapping, JsonValue
from gateway.skills.mime import suffix_of
from gateway.skills.model import Skill
from gateway.skills.sandbox.sandbox import FinishedJob, Job, Limits, Sandbox, prefixes_of, python_path

logger = logging.getLogger(__name__)

MAX_ARGUMENT_BYTES = 100_000
"""Maximum bytes of all arguments of a script together, a little below the limit of the operating system."""

INTERPRETERS = ("python", "bash", "sh", "node", "ruby", "perl", "php", "Rscript")

_MEBIBYTE = 1024 * 1024

_BY_SUFFIX = {
    "py": "python",
    "sh": "sh",
    "bash": "bash",
    "js": "node",
    "mjs": "node",
    "cjs": "node",
    "rb": "ruby",
    "pl": "perl",
    "php": "php",
    "r": "Rscript",
}
_SHEBANG = re.compile(rb"^#![ \t]*(?P<program>\S+)(?:[ \t]+(?P<rest>[^\r\n]*))?")
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def set_digest(skill: Skill) -> str:
    """Return one digest over the paths and contents of all files of a skill. The configuration grants a script for one such digest."""
    listed = [[path, file.digest] for path, file in sorted(skill.files.items())]
    return "sha256:" + hashlib.sha256(json.dumps(listed).encode()).hexdigest()


class ScriptRunner:
    """Decides by the configuration (`skills.scripts`) which scripts of skills may run, and runs them. Call `start` before use."""

    def __init__(self, settings: ScriptSettings, environ: Mapping[str, str]) -> None:
        """Store the settings and create the sandbox. Values of the environment variables that `settings` names come from `environ`."""
        self.settings = settings
        self._environ = environ
        limits = Limits(
            settings.timeout_seconds,
            settings.memory_mb * _MEBIBYTE,
            disk_bytes=settings.disk_mb * _MEBIBYTE,
            disk_files=settings.disk_files,
            output_bytes=settings.output_bytes,
        )
        python = settings.interpreters.get("python", "")
        self._sandbox = Sandbox(limits, concurrency=settings.concurrency, python=python if os.access(python, os.X_OK) else "")
        self.problem = "scripts are not enabled"
        """Reason why scripts cannot run; empty if they can."""
        self.network_problem = ""
        """Reason why scripts with network access cannot run; empty if they can, or if the configuration allows no script network access."""

    async def start(self) -> None:
        """Test whether the sandbox works on this machine, and set `problem` and `network_problem`. Does nothing if scripts are disabled."""
        if self.settings.enabled:
            self.problem = await self._sandbox.probe()
            if self.problem:
                logger.warning("skill scripts unavailable reason=%r", self.problem)
                return
            if self.gap:
                logger.warning("skill scripts can see names and attributes of files outside their copy reason=%r", self.gap)
            if any(grant.network for grant in self.settings.allow):
                self.network_problem = await self._sandbox.probe_network()
            if self.network_problem:
                logger.warning("skill scripts with a network unavailable reason=%r", self.network_problem)

    @property
    def gap(self) -> str:
        """Reason why scripts can see names and attributes of files outside their copy of the skill; empty if they cannot."""
        return self._sandbox.gap

    @property
    def is_offered(self) -> bool:
        """Whether script files are offered to models: the configuration grants at least one, and scripts can run on this machine."""
        return not self.problem and bool(self.settings.allow)

    def judge(self, skill: Skill, path: str) -> ScriptGrant:
        """Return the entry of the configuration that grants the script `path` for the current content of the skill.

        Raises:
            SkillError: The script is not granted, or the skill has changed since it was granted (code `script-not-granted`).
        """
        granted = [g for g in self.settings.allow if g.script == path and _names(g.skill, skill)]
        now = set_digest(skill)
        for grant in granted:
            if grant.digest == now:
                return grant
        command = f"`moongate skills grant {skill.name} {path}`"
        reason = "the skill changed since it was granted" if granted else "it is not granted"
        text = f"Script {path!r} of skill {skill.name!r} may not run: {reason}. The operator grants it with {command}."
        raise SkillError(text, code="script-not-granted")

    async def run(self, skill: Skill, path: str, args: JsonValue, files: Mapping[str, bytes], *, caller: str) -> FinishedJob:
        """Run the script `path` of a skill in the sandbox, in a copy of `files`, and return its output.

        `files` has the content of all files of the skill, with the digests that `skill` lists. `caller` is the id of the principal.

        Raises:
            SkillError: The script is not granted, its arguments are wrong, its interpreter is unknown or missing, or the sandbox or the
                network that it needs is not available.
        """
        if self.problem:
            raise SkillError(f"Scripts cannot run: {self.problem}.", code="sandbox")
        grant = self.judge(skill, path)
        words = command_line(args)
        if grant.network and self.network_problem:
            raise SkillError(f"Script {path!r} needs the network, which is unavailable: {self.network_problem}.", code="sandbox")
        name = interpreter_of(path, files[path])
        program = self._program(name)
        flags = ("-B",) if name == "python" else ()
        job = Job(
            (program, *flags, f"./{path}", *words),
            files,
            shown_at=os.path.join(*skill.key),
            environment={key: self._environ[key] for key in self.settings.environment if key in self._environ},
            read_paths=(*prefixes_of(program), *self.settings.read_paths),
            network=grant.network,
            caller=caller,
            needs_address_space=name == "node",
        )
        done = await self._sandbox.run(job)
        logger.info(
            "script run skill=%s script=%s digest=%s set=%s exit=%d timed_out=%s ms=%d",
            *(skill.id, path, skill.files[path].digest, grant.digest, done.exit_code, done.timed_out, done.milliseconds),
        )
        return done

    def _program(self, name: str) -> str:
        found = self.settings.interpreters.get(name) or (python_path() if name == "python" else shutil.which(name))
        if name == "sh" and not found:
            found = "/bin/sh"
        if not found or not os.path.isabs(found) or not os.access(found, os.X_OK):
            raise SkillError(f"Interpreter {name!r} is missing; install it or set `skills.scripts.interpreters`.", code="no-interpreter")
        return os.path.realpath(found)


def interpreter_of(path: str, data: bytes) -> str:
    """Return the name of the interpreter for a script. The `#!` line names it, or else the extension of `path` determines it.

    Options on the `#!` line are ignored.

    Raises:
        SkillError: The `#!` line or the extension does not name a known interpreter (code `no-interpreter`).
    """
    shebang = _SHEBANG.match(data[:256])
    if shebang:
        words = [shebang["program"], *(shebang["rest"] or b"").split()]
        if os.path.basename(words[0]) == b"env":
            words = [word for word in words[1:] if not word.startswith(b"-") and b"=" not in word]
        named = os.path.basename(words[0]).decode(errors="replace") if words else ""
        plain = re.sub(r"[0-9.]+$", "", named)
        if plain in INTERPRETERS:
            return plain
        raise SkillError(f"{path!r} needs {named!r}, which is not one of {', '.join(INTERPRETERS)}.", code="no-interpreter")
    name = _BY_SUFFIX.get(suffix_of(path))
    if name is None:
        text = f"{path!r} has neither a `#!` line nor a known extension, so its interpreter is unknown. Add a `#!` line."
        raise SkillError(text, code="no-interpreter")
    return name


def command_line(args: JsonValue) -> list[str]:
    """Convert the arguments that a model gave to the command-line arguments of a script.

    An array of strings is used unchanged, and `null` gives no arguments. An object becomes `--key value` for each member; `true` becomes
    `--key`, an array repeats the option, `false` and `null` are left out, and other values than text are written as JSON.

    Raises:
        SkillError: The value has another type, a NUL or lone surrogate, a key that cannot be an option, or too many bytes (code
            `script-arguments`).
    """
    words: list[str] = []
    if isinstance(args, list):
        words += [word if isinstance(word, str) else _refuse("an array may contain only strings") for word in cast("list[JsonValue]", args)]
    elif isinstance(args, dict):
        for key, value in cast("JsonMapping", args).items():
            words += _option(str(key), value)
    elif args is not None:
        _refuse("they must be an object, an array of strings, or null")
    if any("\x00" in word or any("\ud800" <= c <= "\udfff" for c in word) for word in words):
        _refuse("a string has characters that cannot be passed to a program")
    if sum(len(word.encode()) + 1 for word in words) > MAX_ARGUMENT_BYTES:
        _refuse(f"they are longer than {MAX_ARGUMENT_BYTES} bytes; write large input to a file instead")
    return words


def _option(key: str, value: JsonValue) -> Sequence[str]:
    if not _OPTION.fullmatch(key):
        _refuse(f"{key[:80]!r} cannot be the name of an option")
    option = f"--{key}"
    if value is None or value is False:
        return ()
    if value is True:
        return (option,)
    if isinstance(value, list):
        return [word for item in cast("list[JsonValue]", value) for word in (option, _word(item))]
    return (option, _word(value))


def _word(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _refuse(reason: str) -> NoReturn:
    raise SkillError(f"These `args` cannot be used: {reason}.", code="script-arguments")


def _names(named: str, skill: Skill) -> bool:
    plain = named.removeprefix("skill://").removesuffix("/SKILL.md").rstrip("/")
    return plain == skill.id
