"""`moongate schema`: prints the JSON Schemas of Moongate's file formats, or writes them to files for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, cast, get_args

import click

from gateway.cli.common import Choice, json_option
from gateway.cli.output import print_json
from gateway.json_types import JsonObject

SchemaKind = Literal["gateway", "agent", "workflow", "lock"]
KINDS = cast("tuple[SchemaKind, ...]", get_args(SchemaKind))


@click.command()
@click.argument("kind", type=Choice(KINDS), default="gateway")
@click.option("--write", "folder", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path), help="Write all schemas there.")
@json_option
def schema(kind: SchemaKind, folder: Path | None, as_json: bool) -> None:
    """Print the JSON Schema of a file format.

    The formats are gateway.json (the default), and the files of agents, workflows and locks.
    """
    if folder is not None:
        written = [str(path) for path in write_schemas(folder)]
        print_json({"written": written}) if as_json else click.echo("\n".join(written))
        return
    document = schema_document(kind)
    print_json(document) if as_json else click.echo(schema_text(document), nl=False)


def schema_document(kind: SchemaKind) -> JsonObject:
    """Return the JSON Schema of one file format."""
    from gateway.config.json_schemas import build_schema, schema_of

    if kind == "gateway":
        return build_schema()
    if kind == "agent":
        from gateway.agents.definition import AgentFile

        return schema_of(AgentFile, title="Moongate: frontmatter of an *.agent.md file")
    if kind == "lock":
        from gateway.upstream.pins import LockFile

        return schema_of(LockFile, title="Moongate: gateway.lock.json")
    from gateway.workflows.definition import WorkflowFile

    return schema_of(WorkflowFile, title="Moongate: *.workflow.yaml")


def schema_text(document: JsonObject) -> str:
    """Return the text of a schema file, as it is in the repository."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def write_schemas(folder: Path) -> list[Path]:
    """Write `<kind>.schema.json` for every file format into `folder`, and return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for kind in KINDS:
        file = folder / f"{kind}.schema.json"
        file.write_text(schema_text(schema_document(kind)), encoding="utf-8")
        files.append(file)
    return files
