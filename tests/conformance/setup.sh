#!/usr/bin/env bash
# Installs the official conformance suite into $CONFORMANCE_HOME (default ~/.cache/moongate-conformance). Safe to repeat.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../install_node.sh" "${CONFORMANCE_HOME:-$HOME/.cache/moongate-conformance}" \
  @modelcontextprotocol/conformance@0.2.0-alpha.12
