# shellcheck shell=bash
# What every part of ../cluster shares: the settings, messages, waiting, and who owns a cluster. Sourced.
#
# Where things are:
#   $RUN    all that a cluster writes (logs, certificates, data); outside the checkout, thrown away by `down`
#   $SOCK   its sockets and the record of its owner; below /run because a Unix socket's path ends at 107 bytes
#   $SHARED the parent of all clusters' $SOCK: the list of the clusters on this machine

CLUSTER_NAME=${CLUSTER_NAME:-rc}
SHARED=/run/roomcluster
SOCK=$SHARED/$CLUSTER_NAME
RUN=${TMPDIR:-/tmp}/roomcluster-$CLUSTER_NAME

STARTED_AT=$EPOCHREALTIME

say() { printf 'cluster %s: %s\n' "$CLUSTER_NAME" "$*"; }
warn() { printf 'cluster %s: %s\n' "$CLUSTER_NAME" "$*" >&2; }
die() {
  warn "$*"
  exit 1
}

# lap TEXT: a progress line with the seconds since the command began.
lap() {
  local elapsed_us=$((${EPOCHREALTIME/[.,]/} - ${STARTED_AT/[.,]/}))
  printf 'cluster %s: %3d.%d s  %s\n' "$CLUSTER_NAME" $((elapsed_us / 1000000)) $((elapsed_us / 100000 % 10)) "$*"
}

# await SECONDS WHAT CMD...: repeats CMD until it succeeds.
await() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      warn "gave up waiting for $what; the last attempt said:"
      "$@" >&2 || true
      return 1
    fi
    sleep 0.1
  done
}

require_supported_machine() {
  command -v apt-get >/dev/null || die 'only Debian and Ubuntu are supported: the programs come from their packages'
  [ "$(id -u)" = 0 ] || die 'only root can do this: it makes network namespaces, mounts and cgroups'
  # Long names would exceed a socket's path; other characters would upset paths, patterns and host names.
  [[ $CLUSTER_NAME =~ ^[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?$ ]] ||
    die "CLUSTER_NAME '$CLUSTER_NAME' must be 1 to 12 lower-case letters, digits and inner dashes"
}

choose_backend() {
  if [ -z "${CLUSTER_BACKEND:-}" ]; then
    CLUSTER_BACKEND=local
    if docker info >/dev/null 2>&1 && command -v go >/dev/null; then
      CLUSTER_BACKEND=kind
    fi
  fi
  case $CLUSTER_BACKEND in
    local | kind) ;;
    *) die "CLUSTER_BACKEND must be kind or local, not '$CLUSTER_BACKEND'" ;;
  esac
}

# ---- owners -------------------------------------------------------------------------------------------------
# A cluster belongs to a long-lived process. Once that has ended, however it ended, the next `up` on the machine
# sweeps the cluster. The start time tells the process from a later one with the same number.

# start_time PID: clock ticks since boot; fails where there is no such process.
start_time() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  # The command name may hold spaces and parentheses: count the fields after the last one.
  read -ra stat <<<"${stat##*) }"
  [ "${stat[0]}" != Z ] || return 1
  echo "${stat[19]}"
}

# record_owner: takes the cluster's name for the owner and remembers where it lives and how it was made.
record_owner() {
  local pid=${CLUSTER_OWNER_PID:-$PPID} started
  started=$(start_time "$pid") || die "CLUSTER_OWNER_PID $pid is not a running process"
  mkdir -p "$SOCK"
  printf '%s %s %s %s\n' "$pid" "$started" "$CLUSTER_BACKEND" "$RUN" >"$SOCK/owner.new"
  mv "$SOCK/owner.new" "$SOCK/owner"
}

# read_owner NAME: sets owner_pid, owner_started, owner_backend, owner_run; fails where nothing is recorded.
read_owner() {
  read -r owner_pid owner_started owner_backend owner_run <"$SHARED/$1/owner"
} 2>/dev/null

# owner_lives: whether the process of the last read_owner is still there.
owner_lives() {
  [ "$(start_time "$owner_pid")" = "$owner_started" ]
}

# adopt_record: a later command finds the cluster where `up` put it, whatever TMPDIR or the backend are now.
adopt_record() {
  local owner_pid owner_started owner_backend owner_run
  if read_owner "$CLUSTER_NAME"; then
    CLUSTER_BACKEND=$owner_backend
    RUN=$owner_run
  fi
}

# require_up: refuses with a clear word where there is no such cluster.
require_up() {
  [ -e "$SOCK/ready" ] || die 'this cluster is not up (run: cluster up)'
}

# lock_name: one `up` or `down` of a name at a time; the lock goes with the process, even when killed.
# The descriptor is closed in everything that is meant to live on (see start in local.sh).
# Arguments are those of flock, which say how long to wait.
lock_name() {
  local file=$SHARED/$CLUSTER_NAME.lock
  mkdir -p "$SHARED"
  while true; do
    exec {lock_fd}>"$file"
    flock "$@" "$lock_fd" || return 1
    # Whoever held it may have removed the file meanwhile: a lock on a removed file keeps nobody out.
    [ ! "/proc/$$/fd/$lock_fd" -ef "$file" ] || return 0
    exec {lock_fd}>&-
  done
}

unlock_name() {
  rm -f "$SHARED/$CLUSTER_NAME.lock"
  exec {lock_fd}>&-
}
