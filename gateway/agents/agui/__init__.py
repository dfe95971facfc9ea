"""Server side of AG-UI, a protocol between user interfaces and agents: converts an agent's run to AG-UI events, and requests to messages.

`server.agui_runs` serves the gateway's AG-UI route; `chat.agui_client` is the client side.
"""
