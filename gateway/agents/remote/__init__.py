"""Remote agents that speak A2A, and agents of Foundry projects.

`a2a-sdk` (Apache-2.0, the protocol's own package) is an extra, because it depends on protobuf and Google's API packages:
`pip install "moongate[a2a]"`. A remote AG-UI agent is an `Agent` over `chat.agui_client.AGUIChatClient`.
"""
