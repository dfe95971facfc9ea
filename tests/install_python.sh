#!/usr/bin/env bash
# Makes a Python environment of its own: install_python.sh FOLDER REQUIREMENT… Does nothing when it did the same before; what is left of
# a try that failed is made anew, as it may have been with another Python.
set -euo pipefail
folder="$1"; shift
stamp="$folder/.installed"
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$*" ] && exit 0
[ -f "$stamp" ] && [ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv --clear "$folder"
rm -f "$stamp"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
echo "$*" > "$stamp"
