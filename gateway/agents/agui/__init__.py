"""AG-UI server side: converts an agent's run to AG-UI events, and an application's conversation to messages.

`server.agui_runs` serves the gateway's route; `chat.agui_client` is the client side.
"""
