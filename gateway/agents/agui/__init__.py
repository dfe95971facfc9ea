"""AG-UI: an agent's run as a stream of user-interface events, and conversations as the applications send them.

Pure translation; `server.agui` has the route, `chat.agui` the other direction.
"""
