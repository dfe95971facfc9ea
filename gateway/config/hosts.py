"""Keys that other MCP hosts (applications such as editors) write into their configuration files, and how Moongate treats these keys.

The module contains only data: keys that are ignored, other spellings of Moongate's keys, and keys that restrict tools. The gateway converts
keys that restrict tools to policies. The data come from the hosts' documentation of their MCP configuration. Used by `read_entries`, `load`
and `json_schemas`.
"""

from __future__ import annotations

from typing import Literal

IGNORED_KEYS: dict[str, str] = {
    "alwaysAllow": "Roo Code, Windsurf: tools that run without asking",
    "alwaysLoad": "Claude Code: tools kept in context",
    "auth": "Cursor: OAuth client",
    "authProviderType": "Gemini CLI: OAuth provider",
    "autoApprove": "Cline: tools that run without asking",
    "description": "shown by several hosts",
    "dev": "VS Code: watching and debugging",
    "env_vars": "Codex: variables to pass on",
    "envFile": "VS Code, Cursor: file of variables; use `env` with `${VAR}`",
    "extension": "Gemini CLI: owner of the entry",
    "gallery": "VS Code: origin of the entry",
    "headersHelper": "Claude Code: command that prints headers; use `headers` with `${VAR}`",
    "icon": "shown by several hosts",
    "metadata": "Cursor, Cline: notes of the host",
    "name": "shown by several hosts",
    "networkTimeout": "Roo Code: milliseconds; use `policies.<name>.timeoutSeconds`",
    "oauth": "Claude Code, Gemini CLI: OAuth client",
    "remoteConfigured": "Cline: managed entry",
    "sandbox": "VS Code: sandbox rules",
    "sandboxEnabled": "VS Code: sandbox switch",
    "startup_timeout_sec": "Codex: use `policies.<name>.connectTimeoutSeconds`",
    "targetAudience": "Gemini CLI: identity of a service account",
    "targetServiceAccount": "Gemini CLI: identity of a service account",
    "timeout": "several hosts, in different units; use `policies.<name>.timeoutSeconds`",
    "tool_timeout_sec": "Codex: use `policies.<name>.timeoutSeconds`",
    "trust": "Gemini CLI: tools run without asking",
    "version": "VS Code: version of the gallery entry",
    "watchPaths": "Roo Code: restart on change",
}
"""Key of server entries that the gateway ignores → the MCP host that uses it, and its meaning there. A note per server lists such keys."""

KEY_ALIASES: dict[str, str] = {"serverUrl": "url", "httpUrl": "url", "http_headers": "headers", "transport": "type"}
"""Key of server entries of another MCP host (Windsurf, Gemini CLI, Codex, older hosts) → Moongate's key with the same meaning."""

HEADER_VARIABLES = ("bearer_token_env_var", "env_http_headers")
"""Keys of Codex that name environment variables: the variable of the bearer token, and one per header. They are read as `headers`."""

TYPE_ALIASES: dict[str, str] = {
    "streamable-http": "http",
    "streamableHttp": "http",
    "streamable_http": "http",
    "local": "stdio",
}
"""Other spellings of a server entry's `type` → Moongate's spelling."""

TOOL_FILTERS: dict[str, Literal["allow", "deny"]] = {
    "allowedTools": "allow",
    "disabledTools": "deny",
    "disabled_tools": "deny",
    "enabledTools": "allow",
    "enabled_tools": "allow",
    "excludeTools": "deny",
    "includeTools": "allow",
    "tools": "allow",
}
"""Key of another MCP host that lists allowed or denied tools → list in the policy `policies.<name>.tools` to which its value is added.

The hosts are Gemini CLI, Windsurf, Roo Code, Codex and Copilot CLI. Ignoring such a key would expose tools that its author hid.
"""

IGNORED_ROOT_KEYS: dict[str, str] = {
    "globalShortcut": "Claude Desktop",
    "inputs": "VS Code: values an editor asks for",
    "preferences": "Claude Desktop",
    "sandbox": "VS Code: sandbox rules",
}
"""Top-level key of configuration files that the gateway ignores → the MCP host that uses it, and its meaning there if it is not obvious."""
