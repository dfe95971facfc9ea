#!/usr/bin/env bash
# Pushes a built image and a packaged chart to a registry: `deploy/push.sh IMAGE_FOLDER CHART REPOSITORY VERSION`.
#
# IMAGE_FOLDER is what `deploy/build-image.sh` left, CHART is a moongate-*.tgz. The image becomes REPOSITORY:VERSION, and keeps its digest. The
# chart becomes REPOSITORY/chart/moongate with its own version. Needs skopeo, and Helm (`$HELM`, default `helm`), both signed in. For a
# registry on this machine without TLS: PLAIN_HTTP=1.
set -euo pipefail
folder="$1" chart="$2" repository="$3" version="$4"
digest="$(cat "$folder/digest")"
given=(--dest-tls-verify=true) plain=()
if [ -n "${PLAIN_HTTP:-}" ]; then given=(--dest-tls-verify=false) plain=(--plain-http); fi
skopeo copy --quiet --preserve-digests "${given[@]}" "dir:$folder/image" "docker://$repository:$version"
"${HELM:-helm}" push "${plain[@]}" "$chart" "oci://$repository/chart"
echo "pushed $repository:$version with $digest"
