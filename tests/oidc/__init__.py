"""Sign-in at the gateway with a real OpenID provider (npm `oidc-provider`) and the MCP SDK's own OAuth client. `make oidc`."""
