"""Decides what a principal may use, by the section `access` of the configuration and the scopes of API keys and access tokens.

`access.Access` gives each principal its rights (`policy.rights.Rights`), which the gate, the listings and the server ask. `roles` decides
by roles, `cedar_policies` by Cedar policies, and `decisions` combines both with the scopes. `explanation`, `expectations` and `lint` serve
the commands of `moongate policy`.
"""
