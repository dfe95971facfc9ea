#!/usr/bin/env bash
# Installs clients and servers that are not ours into $ACCEPT_HOME (default ~/.cache/moongate-accept). Safe to repeat.
set -euo pipefail
here="$(dirname "${BASH_SOURCE[0]}")"
home="${ACCEPT_HOME:-$HOME/.cache/moongate-accept}"
bash "$here/../install_node.sh" "$home" \
  @modelcontextprotocol/inspector@2.12.0 @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 \
  @modelcontextprotocol/server-everything@2026.8.31 @modelcontextprotocol/server-filesystem@2026.8.31 \
  @modelcontextprotocol/server-memory@2026.8.31 @modelcontextprotocol/server-sequential-thinking@2026.8.31 \
  oidc-provider@9.13.3 @openai/codex@0.169.0
bash "$here/../install_python.sh" "$home/servers" mcp-server-time==2026.10.19 mcp-server-git==2026.10.19 mcp-server-fetch==2026.10.24
# Packages of the 2025 protocol only: their SDK excludes the one of today.
bash "$here/../install_python.sh" "$home/old-servers" "mcp<2" mcp-server-sqlite==2025.4.25
# A client of 2025-11-25 tasks.
bash "$here/../install_python.sh" "$home/agent-framework" "mcp<2" "agent-framework-core==1.13.*"
# Readers of skills, before and after they take the SDK of today.
bash "$here/../install_python.sh" "$home/agent-framework-1.9" "mcp<2" "agent-framework-core==1.9.*"
bash "$here/../install_python.sh" "$home/agent-framework-1.23" "mcp>=2.2,<3" "agent-framework-core==1.23.*"
