"""AG-UI server side: converts an agent's run to AG-UI events, and an application's conversation to messages.

`server.agui` contains the gateway's route, `chat.agui` the client side.
"""
