#!/usr/bin/env bash
# Installs each wheel and source archive of a folder in an empty environment, and uses it outside the repository: the version, the bundled
# skills, a call of a tool, and the database commands.
#   bash .ci/test_artifacts.sh FOLDER [VERSION]
set -euo pipefail
folder=$(cd "$1" && pwd)
version=${2:-}
python=${PYTHON:-python3}
shopt -s nullglob
artifacts=("$folder"/*.whl "$folder"/*.tar.gz)
[ "${#artifacts[@]}" -ge 2 ] || { echo "$folder needs a wheel and a source archive"; exit 1; }
for artifact in "${artifacts[@]}"; do
  echo "== $(basename "$artifact")"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  "$python" -m venv "$work/venv"
  "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$artifact"
  cd "$work"
  export XDG_STATE_HOME="$work/state-home" PATH="$work/venv/bin:$PATH"
  unset PYTHONPATH
  moongate --version | tee shown
  [ -z "$version" ] || grep -qx "moongate, version $version" shown
  echo '{"mcpServers": {}, "expose": {"skills": ["skills"]}, "storage": {"dir": "state"}}' > gateway.json
  mkdir -p skills/tidy
  printf -- '---\nname: tidy\ndescription: How to tidy a desk. Use it whenever a desk is untidy.\n---\nStart on the left.\n' > skills/tidy/SKILL.md
  moongate call load_skill skill_name=tidy --standalone | grep -q "Start on the left"
  moongate db migrate
  moongate db check
  moongate keys add ada > /dev/null
  moongate db backup backup.tar
  moongate db restore backup.tar --replace
  moongate keys list | grep -q ada
  cd /
  rm -rf "$work"
done
