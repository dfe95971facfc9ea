#!/usr/bin/env bash
# Installs published attack suites into $ATTACKS_HOME (default ~/.cache/moongate-attacks). Safe to repeat.
set -euo pipefail
here="$(dirname "${BASH_SOURCE[0]}")"
bash "$here/../install_python.sh" "${ATTACKS_HOME:-$HOME/.cache/moongate-attacks}/authlab" mcp-authlab==0.2.2
