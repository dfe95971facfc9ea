"""Decides what a principal may use, by the section `access` of the configuration and the scopes of API keys and access tokens.

`principal_rights` gives each principal its rights (`policy.caller_rights`), which the gate, the listings and the server ask. `roles`
decides by roles, `cedar_policies` by Cedar policies, and `decisions` combines both with the scopes. `explanation`, `expectations` and
`role_findings` serve the commands of `moongate policy`.
"""
