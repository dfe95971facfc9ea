# pyright: basic, reportMissingImports=false
"""A reader of skills that is not ours: `MCPSkillsSource` of agent-framework-core, run by the Python of an environment of its own.

    python skills_client.py URL

Prints a JSON object: name → the text that loading gave, for every skill that it lists.
"""

import json
import sys
import warnings

import anyio

warnings.simplefilter("ignore")

from agent_framework import MCPSkillsSource  # noqa: E402


async def skills_of(session: object) -> object:
    """Return the name and text of every skill that the server lists."""
    source = MCPSkillsSource(client=session)
    try:
        skills = await source.get_skills()
    except TypeError:  # since agent-framework-core 1.10, `get_skills` requires a context argument
        from agent_framework import SkillsSourceContext

        skills = await source.get_skills(SkillsSourceContext(agent=None, session=None))
    return [[skill.frontmatter.name, await skill.get_content()] for skill in skills]


async def run(url: str) -> object:
    """List the skills with the installed MCP SDK: SDK 2.x has `Client`, SDK 1.x only `ClientSession`."""
    try:
        from mcp import Client
    except ImportError:
        from mcp import ClientSession
        from mcp.client.streamable_http import streamable_http_client

        async with streamable_http_client(url) as streams, ClientSession(streams[0], streams[1]) as session:
            await session.initialize()
            return await skills_of(session)
    async with Client(url) as client:
        return await skills_of(client)


sys.stdout.write(json.dumps(anyio.run(run, sys.argv[1])) + "\n")
