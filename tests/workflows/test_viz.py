"""Drawings of workflows."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.edges import Case, Default
from gateway.workflows.executor import Executor, handler
from gateway.workflows.sub_workflow import WorkflowExecutor
from gateway.workflows.viz import WorkflowViz
from gateway.workflows.workflow import Workflow
from gateway.workflows.workflow_context import WorkflowContext


class Node(Executor):
    @handler
    async def run(self, message: Any, ctx: WorkflowContext[Any, Any]) -> None: ...


def build() -> Workflow:
    inner = WorkflowBuilder(name="inner", start_executor=Node("in")).add_edge("in", Node("out <b>")).build()
    s, a, b, j = Node("start"), Node("a"), Node("b"), Node("join-er")
    builder = WorkflowBuilder(start_executor=s).add_fan_out_edges(s, [a, b]).add_fan_in_edges([a, b], j)
    builder.add_switch_case_edge_group(j, [Case(bool, Node("end")), Default(WorkflowExecutor(inner, id="sub"))])
    return builder.add_edge("end", s, lambda message: True, max_traversals=2).build()


def test_mermaid_shows_start_conditions_fan_ins_and_sub_workflows() -> None:
    text = WorkflowViz(build()).to_mermaid()
    lines = [line.strip() for line in text.splitlines()]
    assert lines[0] == "flowchart TD"
    assert 'start["start (Start)"];' in lines
    assert "start --> a;" in lines
    assert 'n_end -. "conditional, at most 2" .-> start;' in lines
    assert any(line.endswith("((fan-in))") for line in lines)
    assert any("-. default .-> sub;" in line for line in lines)
    assert "out <b>" not in text
    assert lines[-1] == "end"


def test_graphviz_text_shows_the_same() -> None:
    text = WorkflowViz(build()).to_digraph()
    assert text.startswith("digraph Workflow {")
    assert '"start" [fillcolor=lightgreen, label="start\\n(Start)"];' in text
    assert '"end" -> "start" [style=dashed, label="conditional, at most 2"];' in text
    assert 'subgraph "cluster_sub" {' in text
    assert text.count("{") == text.count("}")


def test_the_picture_has_every_node_inside_its_frame(tmp_path: Path) -> None:
    name = WorkflowViz(build()).save_svg(tmp_path / "w.svg")
    root = ElementTree.fromstring(Path(name).read_text())
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    space = "{http://www.w3.org/2000/svg}"
    titles = [title.text for title in root.iter(f"{space}title")]
    assert {"start", "a", "b", "join-er", "end", "sub", "sub/in", "sub/out <b>"} <= set(titles)
    for box in root.iter(f"{space}rect"):
        x, y = float(box.get("x", 0)), float(box.get("y", 0))
        assert 0 <= x <= x + float(box.attrib["width"]) <= width
        assert 0 <= y <= y + float(box.attrib["height"]) <= height
    with pytest.raises(ValueError, match="Unsupported format: png"):
        WorkflowViz(build()).export("png", tmp_path / "w.png")  # pyright: ignore[reportArgumentType]  # the point of the test
