#!/usr/bin/env bash
# Makes a Python environment of its own: install_python.sh FOLDER REQUIREMENT… Does nothing when it did the same before.
set -euo pipefail
folder="$1"; shift
stamp="$folder/.installed"
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$*" ] && exit 0
rm -f "$stamp"
[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
echo "$*" > "$stamp"
