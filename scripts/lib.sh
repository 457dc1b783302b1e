# shellcheck shell=bash
# What the scripts share: messages, signs of life, and a cluster that goes away with the script. Sourced.

CHECKOUT=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
CLUSTER=$CHECKOUT/e2e/cluster/cluster
IMAGES=$CHECKOUT/e2e/cluster/images
TARGET=${CARGO_TARGET_DIR:-$CHECKOUT/target}

# Of a silent step, a line appears this often.
HEARTBEAT_SECONDS=20

say() { printf '%s: %4d s  %s\n' "${0##*/}" "$SECONDS" "$*"; }
die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# step TEXT CMD...: says what begins and what it took, and that it is still at work.
step() {
  local text=$1 began=$SECONDS ticker status=0
  shift
  say "$text"
  (
    while sleep "$HEARTBEAT_SECONDS"; do say "$text: still at it"; done
  ) &
  ticker=$!
  "$@" || status=$?
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  [ "$status" = 0 ] || die "failed ($status): $text"
  [ $((SECONDS - began)) -lt 5 ] || say "$text: done in $((SECONDS - began)) s"
}

# cluster_name LETTER: one for each checkout, so that checkouts do not stop each other; at most 12 characters.
cluster_name() { echo "rc-$1-$(cksum <<<"$CHECKOUT" | cut -c1-7 | tr -d ' ')"; }

# on_end: the cluster goes, however the script ends. What cannot be caught is swept by the next one.
on_end() {
  local status=$?
  trap - EXIT
  trap '' INT TERM
  # One that another run of this checkout uses is not ours to take down.
  if [[ $("$CLUSTER" status 2>/dev/null || true) == *"owner $$ "* ]]; then "$CLUSTER" down || status=1; fi
  exit "$status"
}

# prepare_cluster: all that can be done before it is up.
prepare_cluster() {
  step 'Debian packages of the test cluster' "$CLUSTER" deps
  step 'programs of the test cluster' "$CLUSTER" build
}

# bring_up_cluster LETTER: two nodes that live as long as this script.
bring_up_cluster() {
  CLUSTER_NAME=$(cluster_name "$1")
  CLUSTER_OWNER_PID=$$
  export CLUSTER_NAME CLUSTER_OWNER_PID
  trap on_end EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  step 'brings up two nodes' "$CLUSTER" up --nodes 2
}

# pack_images PROFILE: data plane and operator in two releases each, which differ in their environment only, and the
# stores. Leaves the paths in ARCHIVES.
pack_images() {
  local built=$TARGET/$1 version
  ARCHIVES=()
  for version in v1 v2; do
    ARCHIVES+=("$("$IMAGES" app "dataplane:$version" "$built/dataplane" --env "RELEASE=$version" | tail -1)")
  done
  for version in e2e e2e-next; do
    ARCHIVES+=("$("$IMAGES" app "operator:$version" "$built/roomcluster-operator" --env "RELEASE=$version" | tail -1)")
  done
  mapfile -t -O "${#ARCHIVES[@]}" ARCHIVES < <("$IMAGES" stores)
}

load_images() {
  pack_images "$1"
  "$CLUSTER" load "${ARCHIVES[@]}"
}

# in_cluster OUTPUT PROFILE CMD...: runs a program of the suites where Services and pods are reachable.
in_cluster() {
  local output=$1 profile=$2
  shift 2
  mkdir -p "$output"
  ROOMCLUSTER_CHECKOUT=$CHECKOUT ROOMCLUSTER_OUTPUT=$output ROOMCLUSTER_DATAPLANE=$TARGET/$profile/dataplane \
    "$CLUSTER" exec "$@"
}
