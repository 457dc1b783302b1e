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

# step TEXT CMD...: says what begins and what it took, and that it is still at work. CMD is called as any command is,
# so that its first failure ends it, and the script; on_end tells of which step.
step() {
  local began=$SECONDS
  STEP=$1
  shift
  say "$STEP"
  (
    # In short sleeps: the last of them outlives it, and keeps the output open.
    while true; do
      for ((i = 0; i < HEARTBEAT_SECONDS; i++)); do sleep 1; done
      say "$STEP: still at it"
    done
  ) &
  TICKER=$!
  "$@"
  stop_ticker
  [ $((SECONDS - began)) -lt 5 ] || say "$STEP: done in $((SECONDS - began)) s"
  STEP=
}

stop_ticker() {
  [ -n "${TICKER:-}" ] || return 0
  kill "$TICKER" 2>/dev/null || true
  TICKER=
}

# cluster_name LETTER: one for each checkout, so that checkouts do not stop each other; at most 12 characters.
cluster_name() { echo "rc-$1-$(cksum <<<"$CHECKOUT" | cut -c1-7 | tr -d ' ')"; }

# on_end: the cluster goes, however the script ends. What cannot be caught is swept by the next one.
on_end() {
  local status=$?
  trap - EXIT
  trap '' INT TERM
  stop_ticker
  [ "$status" = 0 ] || [ -z "${STEP:-}" ] || printf '%s: failed (%d): %s\n' "${0##*/}" "$status" "$STEP" >&2
  # One that another run of this checkout uses is not ours to take down.
  if [[ $("$CLUSTER" status 2>/dev/null || true) == *"owner $$ "* ]]; then "$CLUSTER" down || status=1; fi
  exit "$status"
}
trap on_end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

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
