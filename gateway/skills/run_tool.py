"""`run_skill_script`: running a granted script, for clients and agents. Offered only where one can run.

The name and arguments are those of Microsoft's agent framework. What is wrong with a call is an error result that says
what to write instead; a script that fails is one too, with the end of what it said.
"""

from __future__ import annotations

from gateway.errors import NotFound, SkillError, ToolFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.skills.library import SkillLibrary
from gateway.skills.models import MANIFEST, Skill
from gateway.skills.scripts import Finished, ScriptRunner, set_digest, to_structured
from gateway.skills.tools import judge_file, named_skill, similar
from gateway.telemetry.events import EventStream
from gateway.tools.base import Complete, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext

STDERR_TAIL_CHARS = 4_000
"""Characters of standard error in the text of a failed run."""

_STRING: JsonObject = {"type": "string"}


class RunSkillScript:
    """`run_skill_script(skill_name, script_name, args?)`."""

    def __init__(self, library: SkillLibrary, runner: ScriptRunner | None, events: EventStream | None) -> None:
        """Without `runner` only functions of skills in code can run. Every run and refusal is told to `events`."""
        self._library = library
        self._runner = runner
        self._events = events
        self.definition = ToolDefinition(
            name="run_skill_script",
            title="Run a script of a skill",
            description=(
                "Run a script that a loaded skill tells you to run. A script that is a file works on a copy of the skill's folder, "
                "and what it writes is gone afterwards: what matters must be in its output."
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
                    "diskExceeded": {"type": "boolean", "description": "Whether it was stopped because it wrote too much."},
                    "truncated": {"type": "boolean", "description": "Whether output was dropped."},
                    "milliseconds": {"type": "integer"},
                    "result": {**_STRING, "description": "Of a script that is a function: what it returned; other fields are of files."},
                },
                "required": ["skill", "script"],
            },
            annotations={"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False},
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run the script as its skill is at this moment."""
        index = await self._library.current()
        skill = await self._library.recheck(named_skill(self._library, index, arguments, ctx), ctx)
        path, is_function = _script_path(skill, str(arguments.get("script_name") or ""))
        judge_file(self._library, skill, MANIFEST if is_function else path, ctx)
        run = self._call if is_function else self._start
        try:
            return await run(skill, path, arguments.get("args"), ctx)
        except SkillError as error:
            self._tell("script.refused", skill, path, ctx, {"reason": error.code})
            raise ToolFailed(str(error)) from None
        except ToolFailed:
            self._tell("script.finished", skill, path, ctx, {"outcome": "failed"})
            raise

    async def _start(self, skill: Skill, path: str, args: JsonValue, ctx: CallContext) -> Complete:
        """A script that is a file, in the sandbox."""
        if self._runner is None or skill.is_remote:
            raise SkillError(f"Script {path!r} of skill {skill.name!r} may not run: {_why_not(skill)}.", code="scripts-off")
        self._runner.judge(skill, path)
        finished = await self._runner.run(skill, path, args, await self._files(skill, ctx), caller=ctx.principal.id)
        ran = finished.ran
        outcome = "timeout" if ran.timed_out else "complete" if ran.exit_code == 0 else "failed"
        facts: JsonObject = {"outcome": outcome, "exitCode": ran.exit_code, "milliseconds": ran.milliseconds}
        self._tell("script.finished", skill, path, ctx, {**facts, "digest": finished.digest, "set": set_digest(skill)})
        return _to_complete(skill, path, finished)

    async def _call(self, skill: Skill, name: str, args: JsonValue, ctx: CallContext) -> Complete:
        """A function of a skill in code."""
        home = self._library.home_of(skill)
        assert home is not None, "only skills of a home have functions"
        text = await home.run(skill, name, args, ctx)
        self._tell("script.finished", skill, name, ctx, {"outcome": "complete"})
        structured: JsonObject = {"skill": skill.name, "script": name, "result": text}
        return Complete.text(text or "The script ended without any output.", structured=structured)

    def _tell(self, kind: str, skill: Skill, script: str, ctx: CallContext, fields: JsonObject) -> None:
        if self._events is not None:
            named: JsonObject = {"script": script, **fields}
            self._events.emit(kind, source="skill", name=skill.id, principal=ctx.principal.id, fields=named)

    async def _files(self, skill: Skill, ctx: CallContext) -> dict[str, bytes]:
        """Every file with the bytes that the grant is for."""
        files: dict[str, bytes] = {}
        for path in skill.files:
            try:
                now, _, files[path] = await self._library.read(skill, path, ctx)
            except NotFound:
                now = None
            if now is None or set_digest(now) != set_digest(skill):
                raise SkillError(f"Skill {skill.name!r} changes at this moment; try again.", code="unstable")
        return files


def _why_not(skill: Skill) -> str:
    return "it is a server's, not ours" if skill.is_remote else "scripts in files are not enabled (`skills.scripts.enabled`)"


def _script_path(skill: Skill, wanted: str) -> tuple[str, bool]:
    """The script that is meant, and whether it is a function."""
    functions = [function.name for function in skill.functions]
    scripts = [*functions, *(path for path, file in skill.files.items() if file.is_script)]
    plain = wanted.strip().removeprefix("./")
    for path in (plain, *scripts):
        if path in scripts and path.casefold() == plain.casefold():
            return path, path in functions
    hint = similar(wanted, scripts)
    known = f"Did you mean {hint}?" if hint else f"It has {', '.join(scripts[:10]) or 'none'}."
    raise ToolFailed(f"Skill {skill.name!r} has no script {wanted[:200]!r}. {known}")


def _to_complete(skill: Skill, path: str, finished: Finished) -> Complete:
    ran = finished.ran
    failed = ran.timed_out or ran.exit_code != 0
    text = ran.stdout
    if failed:
        how = f"failed with exit code {ran.exit_code}"
        if ran.timed_out:
            how = "was stopped: it took too long"
        elif ran.is_over_disk:
            how = "was stopped: it wrote more than `skills.scripts.diskMb` and `diskFiles` allow"
        elif ran.stopped:
            how = "was stopped: it had more processes and threads at once than a script may have"
        parts = [f"Script {path!r} {how}.", ran.stderr[-STDERR_TAIL_CHARS:].strip(), ran.stdout.strip() and f"It printed:\n{ran.stdout}"]
        text = "\n".join(part for part in parts if part)
    elif ran.stderr.strip():
        text = f"{text}\n[standard error]\n{ran.stderr}" if text else f"[standard error]\n{ran.stderr}"
    result: JsonObject = {
        "content": [{"type": "text", "text": text or "The script ended without any output."}],
        "structuredContent": dict(to_structured(skill.name, path, finished)),
    }
    return Complete({**result, "isError": True} if failed else result)
