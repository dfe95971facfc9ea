"""Agents that do not run in this process: agents that are called with the A2A protocol, and agents of Foundry projects.

The package `a2a-sdk` (Apache-2.0, by the authors of A2A) is an extra, because it depends on protobuf and Google's API packages:
`pip install "moongate[a2a]"`. A remote AG-UI agent is an `Agent` over the chat client `chat.agui_client.AGUIChatClient`.
"""
