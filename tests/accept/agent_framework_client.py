# pyright: basic, reportMissingImports=false
"""A third-party client, agent-framework-core, run by the Python of an environment of its own.

    python agent_framework_client.py URL list
    python agent_framework_client.py URL call TOOL ARGUMENTS_JSON
    python agent_framework_client.py URL cancel TOOL ARGUMENTS_JSON

Prints one JSON value: the functions' names, the result's text, or `"cancelled"` after a call that was given up half way.
"""

import json
import sys

import anyio
from agent_framework import MCPStreamableHTTPTool

GIVE_UP_SECONDS = 1.5


async def run(url: str, verb: str, name: str, arguments: str) -> object:
    """Connect, run one command, and disconnect."""
    async with MCPStreamableHTTPTool("moongate", url, load_prompts=False) as tool:
        if verb == "list":
            return [function.name for function in tool.functions]
        with anyio.move_on_after(GIVE_UP_SECONDS if verb == "cancel" else 30):
            contents = await tool.call_tool(name, **json.loads(arguments))
            return contents if isinstance(contents, str) else "".join(str(content.text) for content in contents)
        await anyio.sleep(0.5)  # it cancels the task in the background, and drops that when it is closed at once
        return "cancelled"


url, verb, name, arguments = (*sys.argv[1:], "", "{}")[:4]
sys.stdout.write(json.dumps(anyio.run(run, url, verb, name, arguments)) + "\n")
