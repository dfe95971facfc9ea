#!/usr/bin/env bash
# Packages the Helm chart of a release: `deploy/package-chart.sh VERSION REPOSITORY FOLDER`. Needs Helm (`$HELM`, default `helm`).
#
# VERSION is that of the Python package, such as 0.2.0 or 0.2.0rc1. It becomes the version of the chart, which Helm wants as 0.2.0-rc.1, and
# its appVersion, which is the tag of the image. REPOSITORY becomes the default of `image.repository`. Leaves moongate-*.tgz in FOLDER.
set -euo pipefail
chart="$(cd "$(dirname "$0")/chart/moongate" && pwd)"
version="$1" repository="$2" out="$3"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cp -r "$chart" "$work/moongate"
grep -qx '  repository: moongate' "$work/moongate/values.yaml" || { echo "values.yaml has no line with image.repository"; exit 1; }
sed -i "s|^  repository: moongate\$|  repository: $repository|" "$work/moongate/values.yaml"
semantic="$(sed -E 's/^([0-9]+\.[0-9]+\.[0-9]+)(a|b|rc)([0-9]+)$/\1-\2.\3/' <<< "$version")"
mkdir -p "$out"
"${HELM:-helm}" package "$work/moongate" --version "$semantic" --app-version "$version" --destination "$out"
