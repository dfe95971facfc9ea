"""A small MCP server to start with: converts between units of measure. Speaks MCP over streamable HTTP on loopback.

    python units.py --port 8766 [--or-any] [--while-runs PID]

Prints its URL once it listens. Needs only the `mcp` package and knows nothing of Moongate: any MCP host can connect to it.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import json
import math
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import mcp_types as t
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

DEFAULT_PORT = 8766
Ctx = ServerRequestContext[Any]


@dataclass(frozen=True)
class Unit:
    """A unit as `base = value * factor + offset`."""

    name: str
    quantity: str
    factor: float
    offset: float = 0.0


_QUANTITIES: Mapping[str, Mapping[str, float]] = {
    "length": {
        "mm": 0.001, "cm": 0.01, "m": 1, "km": 1000, "in": 0.0254, "ft": 0.3048, "yd": 0.9144, "mi": 1609.344, "nmi": 1852,
    },
    "mass": {"mg": 1e-6, "g": 0.001, "kg": 1, "t": 1000, "oz": 0.028349523125, "lb": 0.45359237, "st": 6.35029318},
    "area": {"mm2": 1e-6, "cm2": 1e-4, "m2": 1, "ha": 1e4, "km2": 1e6, "ft2": 0.09290304, "acre": 4046.8564224, "mi2": 2589988.110336},
    "volume": {
        "ml": 1e-6, "l": 0.001, "m3": 1, "tsp": 4.92892159375e-6, "tbsp": 1.478676478125e-5, "floz": 2.95735295625e-5,
        "cup": 2.365882365e-4, "pint": 4.73176473e-4, "quart": 9.46352946e-4, "gal": 3.785411784e-3, "impgal": 4.54609e-3,
    },
    "speed": {"m/s": 1, "km/h": 1 / 3.6, "mph": 0.44704, "kn": 1852 / 3600, "ft/s": 0.3048},
    "time": {"ms": 0.001, "s": 1, "min": 60, "h": 3600, "d": 86_400, "week": 604_800, "year": 31_557_600},
    "pressure": {"Pa": 1, "hPa": 100, "kPa": 1000, "bar": 1e5, "atm": 101_325, "psi": 6894.757293168361, "mmHg": 133.322387415},
    "energy": {"J": 1, "kJ": 1000, "cal": 4.184, "kcal": 4184, "Wh": 3600, "kWh": 3.6e6, "BTU": 1055.05585262, "eV": 1.602176634e-19},
    "power": {"W": 1, "kW": 1000, "MW": 1e6, "hp": 745.6998715822702, "PS": 735.49875},
    "data": {
        "bit": 0.125, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    },
    "angle": {"rad": 1, "deg": math.pi / 180, "grad": math.pi / 200, "turn": 2 * math.pi},
}  # fmt: skip
"""Factors to each quantity's base unit, the one with factor 1. The US and imperial ones are exact by definition."""

UNITS: Mapping[str, Unit] = {
    **{name: Unit(name, quantity, factor) for quantity, units in _QUANTITIES.items() for name, factor in units.items()},
    "K": Unit("K", "temperature", 1),
    "C": Unit("C", "temperature", 1, 273.15),
    "F": Unit("F", "temperature", 5 / 9, 273.15 - 32 * 5 / 9),
}
"""Every unit by its symbol."""

QUANTITIES = sorted({unit.quantity for unit in UNITS.values()})


class Refused(Exception):
    """A call that cannot be done; the text goes to the model."""


def find_unit(symbol: str) -> Unit:
    """The unit of a symbol. Case matters: mW and MW are not the same."""
    plain = symbol.removeprefix("°")
    if plain in UNITS:
        return UNITS[plain]
    near = [name for name in UNITS if name.lower() == plain.lower()] or difflib.get_close_matches(plain, UNITS, n=3, cutoff=0.75)
    hint = f" Did you mean {', '.join(near)}?" if near else " list_units shows all."
    raise Refused(f"Unknown unit {symbol!r}.{hint}")


def convert(value: float, source: Unit, target: Unit) -> float:
    """`value` in another unit, to twelve significant digits."""
    if source.quantity != target.quantity:
        raise Refused(f"{source.name} measures {source.quantity}, {target.name} measures {target.quantity}.")
    base = value * source.factor + source.offset
    if source.quantity == "temperature" and base < -1e-9:
        raise Refused(f"{value:g} {source.name} is below absolute zero.")
    return float(f"{(base - target.offset) / target.factor:.12g}")


_SYMBOL = {"type": "string", "minLength": 1, "maxLength": 12}
_CONVERT = {
    "type": "object",
    "properties": {
        "value": {"type": "number", "description": "How much."},
        "from": {**_SYMBOL, "description": "Symbol of the unit it is in, e.g. mi."},
        "to": {**_SYMBOL, "description": "Symbol of the unit you want, e.g. km."},
    },
    "required": ["value", "from", "to"],
    "additionalProperties": False,
}
_CONVERTED = {
    "type": "object",
    "properties": {"value": {"type": "number"}, "unit": {"type": "string"}, "quantity": {"enum": QUANTITIES}},
    "required": ["value", "unit", "quantity"],
}
_LIST = {
    "type": "object",
    "properties": {"quantity": {"enum": QUANTITIES, "description": "Only units of this quantity."}},
    "additionalProperties": False,
}
_LISTED = {
    "type": "object",
    "properties": {"units": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}}},
    "required": ["units"],
}
_READS = t.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
TOOLS = [
    t.Tool(
        name="convert",
        description="Convert an amount from one unit to another of the same quantity.",
        input_schema=_CONVERT,
        output_schema=_CONVERTED,
        annotations=_READS,
    ),
    t.Tool(
        name="list_units",
        description="List unit symbols by quantity (length, mass, temperature, data, …).",
        input_schema=_LIST,
        output_schema=_LISTED,
        annotations=_READS,
    ),
]


async def list_tools(ctx: Ctx, params: t.PaginatedRequestParams | None) -> t.ListToolsResult:
    """`tools/list`; the tools never change, so clients may keep the answer."""
    return t.ListToolsResult(tools=TOOLS, ttl_ms=3_600_000, cache_scope="public")


async def call_tool(ctx: Ctx, params: t.CallToolRequestParams) -> t.CallToolResult:
    """`tools/call`; what cannot be done is a result that says why."""
    arguments = params.arguments or {}
    try:
        value = _answer(params.name, arguments)
    except Refused as refusal:
        return t.CallToolResult(content=[t.TextContent(type="text", text=str(refusal))], is_error=True)
    text = f"{value['value']:g} {value['unit']}" if params.name == "convert" else json.dumps(value)
    return t.CallToolResult(content=[t.TextContent(type="text", text=text)], structured_content=value)


def _answer(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    match name:
        case "convert":
            target = find_unit(str(arguments.get("to", "")))
            try:
                value = convert(float(arguments["value"]), find_unit(str(arguments.get("from", ""))), target)
            except (KeyError, TypeError, ValueError):
                raise Refused("value must be a number.") from None
            return {"value": value, "unit": target.name, "quantity": target.quantity}
        case "list_units":
            wanted = arguments.get("quantity")
            listed: dict[str, list[str]] = {}
            for unit in UNITS.values():
                if wanted in (None, unit.quantity):
                    listed.setdefault(unit.quantity, []).append(unit.name)
            return {"units": listed}
        case _:
            raise MCPError(-32602, f"Unknown tool: {name}")


async def serve(port: int, while_runs: int | None, *, or_any: bool = False) -> None:
    """Serve until stopped by a signal, or until the process `while_runs` is gone; `or_any` takes a free port if `port` is taken."""
    schemas = {tool.name: tool.input_schema for tool in TOOLS}
    server: Server[Any] = Server(
        "units",
        version="1.0",
        instructions="Converts units of measure. Case matters in symbols: mW is not MW.",
        get_tool_input_schema=schemas.get,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        if not or_any:
            sys.exit(f"units: cannot listen on 127.0.0.1:{port}: {error.strerror}")
        listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="error", timeout_graceful_shutdown=1)
    http = uvicorn.Server(config)
    async with anyio.create_task_group() as tasks:
        if while_runs is not None:
            tasks.start_soon(_stop_after, while_runs, http)
        await http.serve(sockets=[listener])
        tasks.cancel_scope.cancel()


async def _stop_after(process: int, http: uvicorn.Server) -> None:
    while True:
        try:
            os.kill(process, 0)
        except OSError:
            http.should_exit = True
            return
        await anyio.sleep(0.5)


def main() -> None:
    """Read the command line and serve."""
    cli = argparse.ArgumentParser(description="An MCP server that converts units.")
    cli.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 picks a free one")
    cli.add_argument("--or-any", action="store_true", help="take a free port if that one is taken")
    cli.add_argument("--while-runs", type=int, metavar="PID", help="stop when this process is gone")
    options = cli.parse_args()
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again when it has stopped
        anyio.run(functools.partial(serve, options.port, options.while_runs, or_any=options.or_any))


if __name__ == "__main__":
    main()
