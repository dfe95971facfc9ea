"""The tool `run_skill_script`: runs a script file of a skill in the sandbox, or a function of a skill that is a Python object.

A script file runs only if the configuration grants it. Name and arguments of the tool are those of Microsoft's agent framework. A wrong
argument or a failed script gives an error result; for a failed script, the result has the end of its standard error. `SkillSource` offers
the tool if any script can run.
"""

from __future__ import annotations

from gateway.errors import NotFound, SkillError, ToolFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.skills.library import SkillLibrary
from gateway.skills.lookup import check_file, named_skill, suggestion
from gateway.skills.model import MANIFEST, Skill, spelled
from gateway.skills.sandbox.sandbox import FinishedJob
from gateway.skills.scripts import ScriptRunner, set_digest
from gateway.skills.skill_tools import SKILL_NAME, STRING, closed_schema, object_schema
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.base import Complete, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext

STDERR_TAIL_CHARS = 4_000
"""Maximum characters from the end of standard error in the result of a failed script."""


class RunSkillScript:
    """The tool `run_skill_script(skill_name, script_name, args?)`, with which a model runs a script of a skill."""

    def __init__(self, library: SkillLibrary, runner: ScriptRunner | None, events: EventStream | None) -> None:
        """Create the tool. Without `runner`, script files do not run, only functions of skills that are Python objects.

        Each run of a script is reported to `events`, from which the audit log is written; also a run that is refused because of its
        grant, its arguments or the sandbox, but not a call whose caller may not read the skill.
        """
        self._library = library
        self._runner = runner
        self._events = events
        self.definition = ToolDefinition(
            name="run_skill_script",
            title="Run a script of a skill",
            description=(
                "Run a script that a loaded skill tells you to run. A script file works on a copy of the skill's folder, which is "
                "deleted afterwards, so results must be in its output."
            ),
            input_schema=closed_schema(
                {
                    "skill_name": SKILL_NAME,
                    "script_name": {**STRING, "minLength": 1, "description": "Path of the script in the skill, as load_skill lists it."},
                    "args": {
                        "anyOf": [
                            {"type": "object", "description": 'By name: {"length": 24} is `--length 24`; true is an option alone.'},
                            {"type": "array", "items": STRING, "description": "The words of a command line."},
                            {"type": "null"},
                        ],
                        "default": None,
                    },
                },
                "skill_name",
                "script_name",
            ),
            output_schema=object_schema(
                {
                    "skill": STRING,
                    "script": STRING,
                    "digest": {**STRING, "description": "sha256 of the script that ran."},
                    "exitCode": {"type": "integer"},
                    "stdout": STRING,
                    "stderr": STRING,
                    "timedOut": {"type": "boolean"},
                    "diskExceeded": {"type": "boolean", "description": "Whether the script was stopped because it wrote too much."},
                    "truncated": {"type": "boolean", "description": "Whether output was dropped."},
                    "milliseconds": {"type": "integer"},
                    "result": {**STRING, "description": "Return value of a function. All other fields belong to script files."},
                },
                "skill",
                "script",
            ),
            annotations={"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False},
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Read the named skill again, and run the named script.

        Raises:
            ToolFailed: The skill or script does not exist, may not run, or has wrong arguments; or a Python function of the skill failed.
            PolicyDenied: The caller may not read the skill or the script.
            GatewayError: The skill is gone or cannot be read again (`SkillLibrary.recheck`).
        """
        index = await self._library.current()
        skill = await self._library.recheck(named_skill(self._library, index, arguments, ctx), ctx)
        path, is_function = _script_path(skill, str(arguments.get("script_name") or ""))
        check_file(self._library, skill, MANIFEST if is_function else path, ctx)
        run = self._run_function if is_function else self._run_file
        try:
            return await run(skill, path, arguments.get("args"), ctx)
        except SkillError as error:
            self._emit("script.refused", skill, path, ctx, {"reason": error.code})
            if self._events is not None:
                await self._events.stored()
            raise ToolFailed(str(error)) from None
        except ToolFailed:
            self._emit("script.finished", skill, path, ctx, {"outcome": "failed"})
            raise

    async def _run_file(self, skill: Skill, path: str, args: JsonValue, ctx: CallContext) -> Complete:
        if self._runner is None or skill.is_remote:
            raise SkillError(f"Script {path!r} of skill {skill.name!r} may not run: {_why_not(skill)}.", code="scripts-off")
        self._runner.judge(skill, path)
        done = await self._runner.run(skill, path, args, await self._files(skill, ctx), caller=ctx.facts.principal.id)
        outcome = "timeout" if done.timed_out else "complete" if done.exit_code == 0 else "failed"
        facts: JsonObject = {"outcome": outcome, "exitCode": done.exit_code, "milliseconds": done.milliseconds}
        self._emit("script.finished", skill, path, ctx, {**facts, "digest": skill.files[path].digest, "set": set_digest(skill)})
        return _to_complete(skill, path, done)

    async def _run_function(self, skill: Skill, name: str, args: JsonValue, ctx: CallContext) -> Complete:
        backend = self._library.backend_of(skill)
        assert backend is not None, "skills in folders have no functions"
        text = await backend.run(skill, name, args, ctx)
        self._emit("script.finished", skill, name, ctx, {"outcome": "complete"})
        structured: JsonObject = {"skill": skill.name, "script": name, "result": text}
        return Complete.text(text or "The script ended without output.", structured=structured)

    def _emit(self, kind: str, skill: Skill, script: str, ctx: CallContext, fields: JsonObject) -> None:
        if self._events is not None:
            named: JsonObject = {"script": script, **fields}
            self._events.emit(kind, source="skill", name=skill.id, principal=ctx.facts.principal.id, fields=named)

    async def _files(self, skill: Skill, ctx: CallContext) -> dict[str, bytes]:
        """Read all files of the skill, and return their content by path.

        Raises:
            SkillError: A file changed after the skill was read, so that the digest for which the script is granted no longer fits (code
                `unstable`).
        """
        files: dict[str, bytes] = {}
        for path in skill.files:
            try:
                now, _, files[path] = await self._library.read(skill, path, ctx)
            except NotFound:
                now = None
            if now is None or set_digest(now) != set_digest(skill):
                raise SkillError(f"Skill {skill.name!r} changed while it was read; try again.", code="unstable")
        return files


def _why_not(skill: Skill) -> str:
    return "a server publishes the skill" if skill.is_remote else "scripts in files are not enabled (`skills.scripts.enabled`)"


def _script_path(skill: Skill, wanted: str) -> tuple[str, bool]:
    """Return the name of the script that `wanted`, an argument from a model, refers to, and whether the script is a Python function.

    Raises:
        ToolFailed: The skill has no such script; the text names similar scripts.
    """
    functions = [function.name for function in skill.functions]
    scripts = [*functions, *(path for path, file in skill.files.items() if file.is_script)]
    if (path := spelled(wanted.strip().removeprefix("./"), scripts)) is not None:
        return path, path in functions
    hint = suggestion(wanted, scripts, f"Its scripts: {', '.join(scripts[:10]) or 'none'}.")
    raise ToolFailed(f"Skill {skill.name!r} has no script {wanted[:200]!r}. {hint}")


def _to_complete(skill: Skill, path: str, done: FinishedJob) -> Complete:
    failed = done.timed_out or done.exit_code != 0
    text = done.stdout
    if failed:
        how = f"failed with exit code {done.exit_code}"
        if done.timed_out:
            how = "was stopped: it took too long"
        elif done.is_over_disk:
            how = "was stopped: it wrote more than `skills.scripts.diskMb` and `diskFiles` allow"
        elif done.stopped:
            how = "was stopped: it had more processes and threads at once than are allowed"
        parts = [f"Script {path!r} {how}.", done.stderr[-STDERR_TAIL_CHARS:].strip(), done.stdout.strip() and f"It printed:\n{done.stdout}"]
        text = "\n".join(part for part in parts if part)
    elif done.stderr.strip():
        text = f"{text}\n[standard error]\n{done.stderr}" if text else f"[standard error]\n{done.stderr}"
    result: JsonObject = {
        "content": [{"type": "text", "text": text or "The script ended without output."}],
        "structuredContent": {
            "skill": skill.name,
            "script": path,
            "digest": skill.files[path].digest,
            "exitCode": done.exit_code,
            "stdout": done.stdout,
            "stderr": done.stderr,
            "timedOut": done.timed_out,
            "diskExceeded": done.is_over_disk,
            "truncated": done.is_cut,
            "milliseconds": done.milliseconds,
        },
    }
    return Complete({**result, "isError": True} if failed else result)
