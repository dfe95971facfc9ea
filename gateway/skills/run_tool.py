"""`run_skill_script`: running a granted script, for clients and agents. Offered only where one can run.

The name and arguments are those of Microsoft's agent framework. What is wrong with a call is an error result that says
what to write instead; a script that fails is one too, with the end of what it said.
"""

from __future__ import annotations

from gateway.errors import NotFound, SkillError, ToolFailed
from gateway.json_types import JsonObject
from gateway.skills.library import SkillLibrary
from gateway.skills.models import Skill
from gateway.skills.scripts import Finished, ScriptRunner, set_digest, to_structured
from gateway.skills.tools import find_skill, similar
from gateway.tools.base import Complete, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext

STDERR_TAIL_CHARS = 4_000
"""Characters of standard error in the text of a failed run."""

_STRING: JsonObject = {"type": "string"}


class RunSkillScript:
    """`run_skill_script(skill_name, script_name, args?)`."""

    def __init__(self, library: SkillLibrary, runner: ScriptRunner) -> None:
        self._library = library
        self._runner = runner
        self.definition = ToolDefinition(
            name="run_skill_script",
            title="Run a script of a skill",
            description=(
                "Run a script that a loaded skill tells you to run. It works on a copy of the skill's folder, without network, and "
                "what it writes is gone afterwards: what matters must be in its output."
            ),
            input_schema={
                "type": "object",
                "properties": {
                    "skill_name": {**_STRING, "minLength": 1, "description": "Name of the skill; its skill:// URI where names are shared."},
                    "script_name": {**_STRING, "minLength": 1, "description": "Path of the script in the skill, as load_skill lists it."},
                    "args": {
                        "anyOf": [
                            {"type": "object", "description": 'Named: {"length": 24} is `--length 24`, true is the bare option.'},
                            {"type": "array", "items": _STRING, "description": "Words of a command line."},
                            {"type": "null"},
                        ],
                        "default": None,
                    },
                },
                "required": ["skill_name", "script_name"],
                "additionalProperties": False,
            },
            output_schema={
                "type": "object",
                "properties": {
                    "skill": _STRING,
                    "script": _STRING,
                    "digest": {**_STRING, "description": "sha256 of the script that ran."},
                    "exitCode": {"type": "integer"},
                    "stdout": _STRING,
                    "stderr": _STRING,
                    "timedOut": {"type": "boolean"},
                    "truncated": {"type": "boolean", "description": "Whether output was dropped."},
                    "milliseconds": {"type": "integer"},
                },
                "required": ["skill", "script", "exitCode", "stdout", "stderr", "timedOut"],
            },
            annotations={"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False},
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run the script as its skill is at this moment."""
        index = await self._library.current()
        skill = await self._library.recheck(find_skill(index, str(arguments.get("skill_name") or "")))
        path = _script_path(skill, str(arguments.get("script_name") or ""))
        try:
            self._runner.judge(skill, path)
            finished = await self._runner.run(skill, path, arguments.get("args"), await self._files(skill))
        except SkillError as error:
            raise ToolFailed(str(error)) from None
        return _to_complete(skill, path, finished)

    async def _files(self, skill: Skill) -> dict[str, bytes]:
        """Every file with the bytes that the grant is for."""
        files: dict[str, bytes] = {}
        for path in skill.files:
            try:
                now, _, files[path] = await self._library.read(skill, path)
            except NotFound:
                now = None
            if now is None or set_digest(now) != set_digest(skill):
                raise SkillError(f"Skill {skill.name!r} changes at this moment; try again.", code="unstable")
        return files


def _script_path(skill: Skill, wanted: str) -> str:
    scripts = [path for path, file in skill.files.items() if file.is_script]
    plain = wanted.strip().removeprefix("./")
    if plain in scripts:
        return plain
    for path in scripts:
        if path.casefold() == plain.casefold():
            return path
    hint = similar(wanted, scripts)
    known = f"Did you mean {hint}?" if hint else f"It has {', '.join(scripts[:10]) or 'none'}."
    raise ToolFailed(f"Skill {skill.name!r} has no script {wanted[:200]!r}. {known}")


def _to_complete(skill: Skill, path: str, finished: Finished) -> Complete:
    ran = finished.ran
    failed = ran.timed_out or ran.exit_code != 0
    text = ran.stdout
    if failed:
        how = "was stopped: it took too long" if ran.timed_out else f"failed with exit code {ran.exit_code}"
        parts = [f"Script {path!r} {how}.", ran.stderr[-STDERR_TAIL_CHARS:].strip(), ran.stdout.strip() and f"It printed:\n{ran.stdout}"]
        text = "\n".join(part for part in parts if part)
    elif ran.stderr.strip():
        text = f"{text}\n[standard error]\n{ran.stderr}" if text else f"[standard error]\n{ran.stderr}"
    result: JsonObject = {
        "content": [{"type": "text", "text": text or "The script ended without any output."}],
        "structuredContent": dict(to_structured(skill.name, path, finished)),
    }
    return Complete({**result, "isError": True} if failed else result)
