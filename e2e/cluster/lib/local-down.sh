# shellcheck shell=bash
# Takes a local cluster down, whatever state it is in. Sourced by local.sh.
#
# Nothing here asks a component to do anything, nor believes a file of process numbers: components are found by the
# marks in their environment, pods by their cgroup, and both are killed. All that they had is thrown away, so that there
# is nothing which a slower end would save.

# pids_of_files LIST: the numbers in paths below /proc. A list, not a pipe: grep fails whenever a process ends while it
# reads, and that must not end the search.
pids_of_files() { sed -n 's#^/proc/\([0-9]*\)/.*#\1#p' <<<"$1"; }

# marked_pids: components and whatever they started, except for what runs inside containers.
marked_pids() {
  pids_of_files "$(grep -lzFx "ROOMCLUSTER_COMPONENT_OF=$CLUSTER_NAME" /proc/[0-9]*/environ 2>/dev/null)"
}

# pod_pids: processes in the cgroups of the cluster's kubelets.
pod_pids() {
  pids_of_files "$(grep -lF ":/$CGROUP/" /proc/[0-9]*/cgroup 2>/dev/null)"
}

# living: of the numbers on its input, those of processes that have not ended. A zombie has: some machines' first process is slow to collect them.
living() {
  local pid
  while read -r pid; do if start_time "$pid" >/dev/null; then echo "$pid"; fi; done
}

# kill_all: again and again until nobody is left, since a process may start another while it is being killed.
kill_all() {
  local deadline=$((SECONDS + 10))
  local -a pids
  while [ "$SECONDS" -lt "$deadline" ]; do
    mapfile -t pids < <({ marked_pids; pod_pids; } | living)
    [ ${#pids[@]} -gt 0 ] || return 0
    kill -9 "${pids[@]}" 2>/dev/null || true
    sleep 0.03
  done
  warn "processes that will not end: ${pids[*]}"
}

# remove_container_traces: what containers have in folders that all containerds share: their shims' sockets (each shim
# wrote down where its own is), and the network plugins' notes, named by container. Before their state goes.
remove_container_traces() {
  local container address
  for container in "$SOCK"/n*/state/io.containerd.runtime.v2.task/k8s.io/*/; do
    [ -d "$container" ] || continue
    address=$(cat "$container/address" 2>/dev/null || true)
    case $address in unix:///run/containerd/s/*) rm -f "${address#unix://}" ;; esac
    rm -f /var/lib/cni/results/*"-$(basename "$container")-"*
  done
}

# mounts: volumes, root file systems, pods' namespaces; the deepest first.
mounts() {
  awk -v run="$RUN/" -v sock="$SOCK/" 'index($5, run) == 1 || index($5, sock) == 1 { print $5 }' /proc/self/mountinfo |
    LC_ALL=C sort -r
}

# remove_mounts: stops everything when one stays, since removing the folders would then remove what is mounted there,
# which may be a folder of the machine.
remove_mounts() {
  local mount left
  mounts | while read -r mount; do umount "$mount" 2>/dev/null || umount -l "$mount" || true; done
  left=$(mounts)
  [ -z "$left" ] || die "cannot unmount $left"
}

remove_namespaces() {
  local path
  for path in "/run/netns/roomcluster-$CLUSTER_NAME"-n[0-9]; do
    [ ! -e "$path" ] || ip netns del "${path##*/}" || warn "cannot remove the namespace ${path##*/}"
  done
}

remove_cgroups() {
  local group
  for group in "/sys/fs/cgroup/$CGROUP" /sys/fs/cgroup/*/"$CGROUP"; do
    [ -d "$group" ] || continue
    # A killed process leaves its cgroup a moment after it has gone.
    await 5 "cgroup $group to be empty" remove_cgroup_tree "$group" || warn "cgroup $group is left"
  done
}

remove_cgroup_tree() {
  find "$1" -depth -type d -exec rmdir {} + 2>/dev/null || true
  [ ! -d "$1" ]
}

# remove_log_links: the kubelet links every log from a folder of the whole machine.
remove_log_links() { find /var/log/containers -maxdepth 1 -type l -lname "$RUN/*" -delete 2>/dev/null || true; }

# The kubelet sets these for the whole machine. The first cluster remembers them and the last one puts them back.
SYSCTLS=(vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys
  kernel.keys.root_maxbytes)

save_machine_state() {
  [ -e "$SHARED/sysctls" ] || { sysctl "${SYSCTLS[@]}" >"$SHARED/sysctls.new" && mv "$SHARED/sysctls.new" "$SHARED/sysctls"; }
}

restore_machine_state() {
  [ -e "$SHARED/sysctls" ] || return 0
  sysctl -qp "$SHARED/sysctls" || warn 'some kernel settings could not be put back'
  rm -f "$SHARED/sysctls"
  # Every kubelet makes this socket at this place, whatever its own folder is. Nothing here uses it.
  if ! pgrep -x -r D,R,S,T kubelet >/dev/null; then
    rm -f /var/lib/kubelet/device-plugins/kubelet.sock
    rmdir /var/lib/kubelet/device-plugins /var/lib/kubelet 2>/dev/null || true
  fi
}

local_down() {
  kill_all
  remove_container_traces
  remove_mounts
  remove_namespaces
  remove_cgroups
  remove_log_links
}
