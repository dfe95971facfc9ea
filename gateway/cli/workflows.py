"""`moongate workflows`: checks and draws workflow files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from gateway.cli.check_reports import show_reports
from gateway.cli.common import Choice, Group, data_options, diverted_stdout, json_option, load, run_async
from gateway.cli.output import print_json
from gateway.config.paths import did_you_mean_path
from gateway.config.suggest import did_you_mean
from gateway.errors import NotFound

if TYPE_CHECKING:
    from gateway.config.load import LoadedConfig


@click.group(cls=Group)
def workflows() -> None:
    """Workflow files: check them, and draw them. `moongate list workflows` lists what is served."""


@workflows.command("check")
@click.argument("paths", nargs=-1, metavar="PATH…")
@click.option("--strict", is_flag=True, help="Reject files that would be served with a warning.")
@json_option
def check(paths: tuple[str, ...], strict: bool, as_json: bool) -> None:
    """Check the workflow files below each PATH, a folder or a file.

    Default: the working directory. Modules that the files name are not imported. Exit code 5 if a file is rejected.
    """
    from gateway.workflows.file_report import check_workflows

    show_reports(check_workflows(paths or (".",), strict=strict), "workflows", "workflows-rejected", as_json=as_json)


@workflows.command("graph")
@click.argument("workflow", metavar="WORKFLOW")
@click.option("--format", "picture", type=Choice(("mermaid", "dot", "svg")), default="mermaid", help="Format. Default: mermaid.")
@click.option("--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write the drawing to FILE.")
@data_options
def graph(workflow: str, picture: Literal["mermaid", "dot", "svg"], output: Path | None, config_path: str | None, as_json: bool) -> None:
    """Draw a workflow as Mermaid text, Graphviz text or SVG.

    WORKFLOW is the name of a configured workflow, or a file. Its agents and tools need not exist. Its Python modules are imported, unless
    the file waits for acceptance (`moongate lock`).
    """
    from gateway.gate.acceptance import Acceptance
    from gateway.gate.function_rules import FunctionRules
    from gateway.storage.atomic_files import write_atomic
    from gateway.workflows.drawing import draw

    acceptance = Acceptance()
    loaded = load(config_path, fetches=False, acceptance=acceptance)
    path = _file_of(workflow, loaded)

    async def work() -> str:
        with diverted_stdout():
            rules = FunctionRules(loaded.config.policies.get)
            return await draw(path, picture, base_dir=loaded.base_dir, rules=rules, refusal=acceptance.refusal)

    text = run_async(work)
    if output is not None:
        write_atomic(output, (text + "\n").encode(), mode=0o644)
    if as_json:
        print_json({"path": str(path), "format": picture, "output": str(output) if output else None, "graph": text})
    elif output is None:
        click.echo(text)
    else:
        click.echo(str(output))


def _file_of(workflow: str, loaded: LoadedConfig) -> Path:
    """Return `workflow` if it has the form of a path (a separator or a suffix of workflow files), else the file of the workflow so named.

    Raises:
        NotFound: There is no such file or workflow.
    """
    from gateway.cli.configured_names import workflow_files
    from gateway.workflows.loader import SUFFIXES

    if workflow.endswith(SUFFIXES) or os.path.sep in workflow:
        if not Path(workflow).exists():
            raise NotFound("workflow", workflow, f"File {workflow!r} does not exist. {did_you_mean_path(workflow)}".rstrip())
        return Path(workflow)
    files = workflow_files(loaded)
    if workflow in files:
        return files[workflow]
    hint = did_you_mean(workflow, files) or "`moongate list workflows` shows them."
    raise NotFound("workflow", workflow, f"Unknown workflow {workflow!r}. {hint}")
