"""Remote agents that speak A2A, as agents.

`a2a-sdk` (Apache-2.0, the protocol's own) is an extra, because it brings protobuf and Google's API packages along:
`pip install "moongate[a2a]"`. AG-UI needs no room here: a remote AG-UI agent is an `Agent` over `chat.agui.AGUIChatClient`.
"""
