"""`moongate skills`: checks skill folders, lists served skills with their token costs, and prints grants.

A grant is an entry for `gateway.json` that permits the scripts of one skill to run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.check_reports import show_reports
from gateway.cli.common import CHARS_PER_TOKEN, Group, data_options, json_option, load, run_async
from gateway.cli.output import first_line, print_json, print_note, print_table
from gateway.config.policies import SkillFilter
from gateway.config.suggest import did_you_mean
from gateway.errors import NotFound, ToolFailed
from gateway.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from gateway.config.load import LoadedConfig
    from gateway.skills.index import SkillIndex
    from gateway.skills.model import Skill


@click.group(cls=Group)
def skills() -> None:
    """Skill folders: check them, and list what is served."""


@skills.command("check")
@click.argument("paths", nargs=-1, metavar="PATH…")
@click.option("--strict", is_flag=True, help="Reject files that would be served with a warning.")
@json_option
def check(paths: tuple[str, ...], strict: bool, as_json: bool) -> None:
    """Check the skills below each PATH.

    PATH is a folder of skills, a skill's folder or its SKILL.md. Default: the working directory. Exit code 5 if a skill is rejected.
    """
    from gateway.skills.folder_check import check_skills
    from gateway.skills.model import MANIFEST

    reports = check_skills(paths or (".",), strict=strict)
    hidden = sum(report.verdict != "rejected" and not report.listed for report in reports)
    remark = f"; {hidden} of them for tools only" if hidden else ""
    show_reports(reports, "skills", "skills-rejected", manifest=f"{os.sep}{MANIFEST}", remark=remark, as_json=as_json)


@skills.command("list")
@click.option("--tokens", is_flag=True, help="Estimate the tokens that skills take in a model's context, most first.")
@click.option("--folders", is_flag=True, help="List only the skills of folders, without starting servers or importing Python modules.")
@data_options
def list_skills(tokens: bool, folders: bool, config_path: str | None, as_json: bool) -> None:
    """List the skills that are served.

    These are the skills of folders, of Python objects and of the configured servers, including skills that clients
    find only with the skill tools, not in the list of resources.
    """
    loaded = load(config_path, fetches=False)
    index = run_async(lambda: read_index(loaded, folders_only=folders))
    rows = [skill_row(skill, tokens=tokens) for skill in index.skills]
    if tokens:
        rows.sort(key=lambda row: (-int(row["tokens"]["loaded"]), str(row["name"])))
    totals = {key: sum(int(row["tokens"][key]) for row in rows) for key in ("advertised", "loaded")} if tokens else {}
    if as_json:
        print_json({"skills": list[JsonMapping](rows), **({"total": totals, "estimate": "characters / 4"} if tokens else {})})
    elif tokens and rows:
        cells = [[str(row["name"]), str(row["tokens"]["advertised"]), str(row["tokens"]["loaded"])] for row in rows]
        total = ["total (estimate)", str(totals["advertised"]), str(totals["loaded"])]
        print_table(("name", "advertised", "loaded"), [*cells, total], empty="")
        print_note("advertised: name and description, in prompts that name all skills; loaded: the instructions, once a skill is used.")
    else:
        print_table(
            ("name", "listed", "origin", "description"),
            [[str(r["name"]), "yes" if r["listed"] else "tools", str(r["origin"]), first_line(r["description"])] for r in rows],
            empty="No skills are served. `expose.skills` of the configuration names folders of skills.",
        )


@skills.command("grant")
@click.argument("skill_name", metavar="SKILL")
@click.argument("script_names", metavar="SCRIPT…", nargs=-1)
@data_options
def grant(skill_name: str, script_names: tuple[str, ...], config_path: str | None, as_json: bool) -> None:
    """Print the configuration entry that lets scripts of SKILL run.

    Put the entry under `skills.scripts.allow`. It is valid until a file of the skill changes. Read the skill first. Without SCRIPT, the
    entry allows all scripts of the skill.
    """
    from gateway.skills.index import build_index
    from gateway.skills.lookup import find_skill
    from gateway.skills.scripts import set_digest

    index = build_index(tuple(load(config_path).config.expose.skills))
    try:
        skill = find_skill(index, skill_name)
    except ToolFailed:
        hint = did_you_mean(skill_name, [index.handle(skill) for skill in index.skills]) or "`moongate skills list` shows them."
        raise NotFound("skill", skill_name, f"Unknown skill {skill_name!r}. {hint}") from None
    scripts = [path for path, file in skill.files.items() if file.is_script]
    for name in script_names:
        if name not in scripts:
            hint = did_you_mean(name, scripts) or f"Its scripts: {', '.join(scripts) or 'none'}."
            raise NotFound("script", name, f"Skill {skill_name!r} has no script {name!r}. {hint}")
    entries: list[JsonObject] = [
        {"skill": skill.id, "script": path, "digest": set_digest(skill)} for path in (script_names or tuple(scripts))
    ]
    if as_json:
        print_json({"allow": list[JsonMapping](entries)})
        return
    import json

    click.echo(",\n".join(json.dumps(entry) for entry in entries))
    print_note(f"Put this under `skills.scripts.allow` if you trust {os.path.join(*skill.key)}; any change of the skill revokes this.")


def may_start_servers(loaded: LoadedConfig) -> bool:
    """Return whether `read_index` must start the sources: servers or Python objects may have skills, or a policy filters skills."""
    config = loaded.config
    return bool(config.mcp_servers or config.skills.objects or config.policy("skill").skills != SkillFilter())


async def read_index(loaded: LoadedConfig, *, folders_only: bool = False) -> SkillIndex:
    """Return the index of the skills that a gateway with this configuration serves. Starts the sources if `may_start_servers` is true.

    If `folders_only` is true, return only the skills of folders, and start nothing.
    """
    from gateway.cli.hub import open_own
    from gateway.skills.index import SkillIndex, build_index

    config = loaded.config
    if folders_only or not may_start_servers(loaded):
        signed = {str(Path(root).resolve()): rule for root, rule in config.skills.signatures.items()}  # noqa: ASYNC240  # nothing else runs
        return build_index(tuple(config.expose.skills), strict=config.skills.strict, signed=signed)
    async with open_own(loaded) as own:
        return own.gateway.skill_index or SkillIndex()


def skill_row(skill: Skill, *, tokens: bool = False) -> JsonObject:
    """Return a skill as the JSON object that `skills list` prints. `name` is the name by which tools load the skill."""
    from gateway.skills.render import one_line

    row: JsonObject = {
        "name": skill.id,
        "description": one_line(skill.document.description),
        "uri": skill.uri,
        "listed": skill.is_listed,
        "origin": skill.origin,
        "files": len(skill.files),
        "bytes": sum(file.size for file in skill.files.values()),
    }
    if tokens:
        loaded = len(skill.document.text) or skill.manifest.size  # a server's text is not read for this
        row["tokens"] = {"advertised": _tokens(len(skill.id) + len(row["description"])), "loaded": _tokens(loaded)}
    return row


def _tokens(characters: int) -> int:
    return -(-characters // CHARS_PER_TOKEN)
