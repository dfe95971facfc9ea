"""The configuration room: reads `gateway.json`, expands references, validates, and exports JSON Schema.

Not the meaning of any setting: the rooms above give it. Entry points are `load.load_config`,
`models.GatewayConfig`, `jsonc` (reading and in-place editing) and `schema.build_schema`.
"""
