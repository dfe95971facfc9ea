"""`WorkflowViz`: draws the graph of a workflow as Mermaid text, Graphviz text or SVG. Names are those of Microsoft's agent-framework.

All formats are made from the same `Drawing`. The drawing has the start executor, conditions and limits of edges, a node for each fan-in,
and a frame for each sub-workflow. The SVG layout is computed in this module, so that Graphviz need not be installed.
"""

from __future__ import annotations

import hashlib
import html
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gateway.storage.atomic_files import write_atomic
from gateway.workflows.edges import FanInEdgeGroup, InternalEdgeGroup, SwitchCaseEdgeGroup, SwitchCaseEdgeGroupDefault

if TYPE_CHECKING:
    from gateway.workflows.workflow import Workflow

Kind = Literal["start", "executor", "fan-in"]
Format = Literal["svg", "dot", "mermaid"]

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 150, 40, 40, 60, 20
_FILLS = {"start": "#c8e6c9", "executor": "#e3f2fd", "fan-in": "#fff3cd"}


@dataclass(frozen=True, slots=True)
class Node:
    """A box in the drawing of a workflow: an executor, or a fan-in (the point where edges from several executors to one are joined)."""

    id: str
    """Id of the box, unique in the whole drawing, including drawings of sub-workflows."""
    label: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Line:
    """An arrow in the drawing of a workflow, from one box to another: an edge of the graph, or a part of an edge through a fan-in."""

    source: str
    target: str
    label: str = ""
    is_conditional: bool = False


@dataclass(slots=True)
class Drawing:
    """The boxes and arrows that represent a workflow, without positions."""

    nodes: list[Node] = field(default_factory=list[Node])
    lines: list[Line] = field(default_factory=list[Line])
    inner: list[tuple[str, Drawing]] = field(default_factory=lambda: list[tuple[str, "Drawing"]]())
    """Drawings of sub-workflows, as pairs: id of the executor that runs the sub-workflow, and its drawing."""

    @classmethod
    def of(cls, workflow: Workflow, prefix: str = "") -> Drawing:
        """Create the drawing of a workflow. The ids of all boxes start with `prefix`."""
        made = cls()
        for name, executor in workflow.executors.items():
            kind: Kind = "start" if name == workflow.start_executor_id else "executor"
            made.nodes.append(Node(prefix + name, f"{name} (Start)" if kind == "start" else name, kind))
            child: Workflow | None = getattr(executor, "workflow", None)
            if child is not None:
                made.inner.append((name, cls.of(child, f"{prefix}{name}/")))
        for group in workflow.edge_groups:
            if isinstance(group, InternalEdgeGroup):
                continue
            if isinstance(group, FanInEdgeGroup):
                sources, target = group.source_executor_ids, group.edges[0].target_id
                digest = hashlib.sha256("|".join([target, *sorted(sources)]).encode()).hexdigest()[:8]
                join = Node(f"{prefix}fan_in::{target}::{digest}", "fan-in", "fan-in")
                made.nodes.append(join)
                made.lines += [Line(prefix + source, join.id) for source in sources]
                made.lines.append(Line(join.id, prefix + target))
                continue
            cases = _cases(group) if isinstance(group, SwitchCaseEdgeGroup) else {}
            is_chosen = getattr(group, "selection_func", None) is not None
            for edge in group.edges:
                word = cases.get(edge.target_id) or _condition(edge.condition)
                words = [word] if edge.has_condition or is_chosen else []
                if edge.max_traversals is not None:
                    words.append(f"at most {edge.max_traversals}")
                made.lines.append(Line(prefix + edge.source_id, prefix + edge.target_id, ", ".join(words), edge.has_condition or is_chosen))
        return made


def _condition(function: object) -> str:
    """Return the label of an edge with this condition: the condition's text if it is from a workflow file, otherwise `conditional`."""
    name = getattr(function, "__name__", "")
    return name if ": " in name else "conditional"


def _cases(group: SwitchCaseEdgeGroup) -> dict[str, str]:
    """Return the label of each target of a switch, by target id: the texts of its cases, joined by `or`."""
    words: dict[str, list[str]] = {}
    for case in group.cases:
        word = "default" if isinstance(case, SwitchCaseEdgeGroupDefault) else _condition(case.condition)
        if word not in words.setdefault(case.target_id, []):
            words[case.target_id].append(word)
    return {target: " or ".join(found) for target, found in words.items()}


class WorkflowViz:
    """Draws the graph of a workflow as Mermaid text, Graphviz text or SVG."""

    def __init__(self, workflow: Workflow) -> None:
        self._drawing = Drawing.of(workflow)

    def to_mermaid(self) -> str:
        """Return the workflow as the text of a Mermaid flow chart, from top to bottom."""
        lines = ["flowchart TD"]
        _mermaid(self._drawing, lines, "  ", _MermaidIds())
        return "\n".join(lines)

    def to_digraph(self) -> str:
        """Return the workflow as the text of a Graphviz digraph, from top to bottom."""
        lines = ["digraph Workflow {", "  rankdir=TD;", "  node [shape=box, style=filled, fillcolor=lightblue];"]
        lines.append("  edge [color=black, arrowhead=vee];")
        _digraph(self._drawing, lines, "  ")
        return "\n".join([*lines, "}"])

    def to_svg(self) -> str:
        """Return the workflow as the text of an SVG picture."""
        body, width, height = _svg(self._drawing)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="13">'
            '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
            '<path d="M 0 0 L 10 5 L 0 10 z" fill="#555"/></marker></defs>'
            f'<rect width="{width}" height="{height}" fill="white"/>{body}</svg>'
        )

    def export(self, format: Format = "svg", filename: str | Path | None = None) -> str:
        """Write the drawing to a file and return the file's path. The default is a file in a new temporary folder. Blocking.

        Raises:
            ValueError: The format is not supported.
        """
        texts = {"svg": self.to_svg, "dot": self.to_digraph, "mermaid": self.to_mermaid}
        if format not in texts:
            raise ValueError(f"Unsupported format: {format}. Supported formats: {', '.join(texts)}")
        filename = filename or Path(tempfile.mkdtemp(), f"workflow.{format}")
        write_atomic(Path(filename), texts[format]().encode(), mode=0o644)
        return str(filename)

    def save_svg(self, filename: str | Path) -> str:
        """Write the drawing to an SVG file and return the file's path. Blocking."""
        return self.export("svg", filename)


class _MermaidIds:
    """Converts names to unique Mermaid ids, which have only letters, digits and underscores.

    If two names would have the same id, the id of the second ends with a digest.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """Mermaid id → the name to which it was assigned."""

    def of(self, name: str) -> str:
        """Return the Mermaid id of a name. Repeated calls with a name return the same id."""
        plain = re.sub(r"[^0-9A-Za-z_]", "_", name)
        word = plain if plain[:1].isalpha() and plain.lower() not in ("end", "graph", "subgraph") else f"n_{plain}"
        if self._names.setdefault(word, name) == name:
            return word
        word += "_" + hashlib.sha256(name.encode()).hexdigest()[:6]
        self._names[word] = name
        return word


def _quoted(text: str) -> str:
    return html.escape(text, quote=True).replace("&#x27;", "'")


def _mermaid(drawing: Drawing, lines: list[str], indent: str, words: _MermaidIds) -> None:
    for node in drawing.nodes:
        box = f"(({node.label}))" if node.kind == "fan-in" else f'["{_quoted(node.label)}"];'
        lines.append(f"{indent}{words.of(node.id)}{box}")
    for line in drawing.lines:
        label = line.label if line.label.isalpha() else f'"{_quoted(line.label)}"'
        arrow = f"-. {label} .->" if line.is_conditional else f"-- {label} -->" if line.label else "-->"
        lines.append(f"{indent}{words.of(line.source)} {arrow} {words.of(line.target)};")
    for name, inner in drawing.inner:
        lines.append(f'{indent}subgraph {words.of("sub-workflow/" + name)}["{_quoted(name)}"]')
        _mermaid(inner, lines, indent + "  ", words)
        lines.append(f"{indent}end")


def _dot_text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _digraph(drawing: Drawing, lines: list[str], indent: str) -> None:
    for node in drawing.nodes:
        look = {"start": "fillcolor=lightgreen, ", "fan-in": "shape=ellipse, fillcolor=lightgoldenrod, ", "executor": ""}[node.kind]
        label = _dot_text(node.label).replace(" (Start)", "\\n(Start)") if node.kind == "start" else _dot_text(node.label)
        lines.append(f"{indent}{_dot_text(node.id)} [{look}label={label}];")
    for line in drawing.lines:
        parts = ["style=dashed"] if line.is_conditional else []
        parts += [f"label={_dot_text(line.label)}"] if line.label else []
        attributes = f" [{', '.join(parts)}]" if parts else ""
        lines.append(f"{indent}{_dot_text(line.source)} -> {_dot_text(line.target)}{attributes};")
    for name, inner in drawing.inner:
        lines += [f"{indent}subgraph {_dot_text('cluster_' + name)} {{", f"{indent}  label={_dot_text('sub-workflow: ' + name)};"]
        _digraph(inner, lines, indent + "  ")
        lines.append(f"{indent}}}")


def _layers(drawing: Drawing) -> list[list[Node]]:
    """Return the boxes of a drawing in rows for the SVG layout. The row is the length of the shortest path from the start executor."""
    outgoing: dict[str, list[str]] = {}
    for line in drawing.lines:
        outgoing.setdefault(line.source, []).append(line.target)
    depth = {node.id: 0 for node in drawing.nodes if node.kind == "start"}
    queue = list(depth)
    for name in queue:
        for target in outgoing.get(name, []):
            if target not in depth:
                depth[target] = depth[name] + 1
                queue.append(target)
    rows: list[list[Node]] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for node in drawing.nodes:
        rows[depth.get(node.id, 0)].append(node)
    return rows


def _svg(drawing: Drawing, top: int = _MARGIN) -> tuple[str, int, int]:
    rows = _layers(drawing)
    width = 2 * _MARGIN + max(len(row) for row in rows) * (_WIDTH + _GAP_X)
    places: dict[str, tuple[int, int]] = {}
    parts: list[str] = []
    for index, row in enumerate(rows):
        left = (width - len(row) * (_WIDTH + _GAP_X) + _GAP_X) // 2
        for column, node in enumerate(row):
            places[node.id] = (left + column * (_WIDTH + _GAP_X), top + index * (_HEIGHT + _GAP_Y))
    parts += [_arrow(line, places[line.source], places[line.target]) for line in drawing.lines]
    for node in drawing.nodes:
        x, y = places[node.id]
        shown = node.label if len(node.label) <= 22 else node.label[:21] + "…"
        parts.append(
            f'<g><title>{html.escape(node.id)}</title><rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" '
            f'rx="{20 if node.kind == "fan-in" else 6}" fill="{_FILLS[node.kind]}" stroke="#555"/>'
            f'<text x="{x + _WIDTH // 2}" y="{y + _HEIGHT // 2 + 4}" text-anchor="middle">{html.escape(shown)}</text></g>'
        )
    height = top + len(rows) * (_HEIGHT + _GAP_Y) - _GAP_Y + _MARGIN
    for name, inner in drawing.inner:
        body, inner_width, inner_height = _svg(inner, height + 2 * _MARGIN)
        size = f'width="{inner_width - 8}" height="{inner_height - height - 4}"'
        frame = f'<rect x="4" y="{height}" {size} fill="none" stroke="#999" stroke-dasharray="5"/>'
        parts.append(f'{frame}<text x="12" y="{height + 16}" fill="#555">{html.escape(name)}</text>{body}')
        width, height = max(width, inner_width), inner_height + _MARGIN
    return "".join(parts), width, height


def _arrow(line: Line, source: tuple[int, int], target: tuple[int, int]) -> str:
    x1, y1, x2, y2 = source[0] + _WIDTH // 2, source[1] + _HEIGHT, target[0] + _WIDTH // 2, target[1]
    if target[1] > source[1]:
        path, at = f"M {x1} {y1} C {x1} {y1 + 30}, {x2} {y2 - 30}, {x2} {y2}", ((x1 + x2) // 2, (y1 + y2) // 2)
    else:
        x1, y1, x2, y2 = source[0] + _WIDTH, source[1] + _HEIGHT // 2, target[0] + _WIDTH, target[1] + _HEIGHT // 2
        out = max(x1, x2) + _GAP_X - 5
        path, at = f"M {x1} {y1} C {out} {y1}, {out} {y2 + 8}, {x2} {y2 + 8}", (out - 12, (y1 + y2) // 2)
    dash = ' stroke-dasharray="6"' if line.is_conditional else ""
    drawn = f'<path d="{path}" fill="none" stroke="#555" marker-end="url(#arrow)"{dash}/>'
    if line.label:
        drawn += f'<text x="{at[0]}" y="{at[1]}" text-anchor="middle" font-size="11" fill="#555">{html.escape(line.label)}</text>'
    return drawn
