#!/usr/bin/env bash
# Installs clients that are not ours into $ACCEPT_HOME (default ~/.cache/moongate-accept). Safe to repeat.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../install_node.sh" "${ACCEPT_HOME:-$HOME/.cache/moongate-accept}" \
  @modelcontextprotocol/inspector@2.12.0 @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0
