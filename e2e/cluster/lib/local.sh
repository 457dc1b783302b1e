# shellcheck shell=bash
# The "local" backend: a Kubernetes cluster of plain processes. Sourced by ../cluster.
#
# Each node is a network namespace with a kubelet, a containerd and a kube-proxy. Node 1's namespace also holds the
# control plane, the DNS server and the bridge that joins the nodes. There is no default route: nothing listens on, or
# reaches, anything outside of these namespaces.

CGROUP=roomcluster-$CLUSTER_NAME
API_SERVICE_IP=10.96.0.1
DNS_SERVICE_IP=10.96.0.10

node_ns() { echo "roomcluster-$CLUSTER_NAME-n$1"; }
node_ip() { echo "10.77.0.$1"; }
node_name() { echo "n$1"; }
node_numbers() { seq "$(cat "$RUN/nodes")"; }

# shellcheck source=lib/local-pki.sh
. "$CLUSTER_DIR/lib/local-pki.sh"
# shellcheck source=lib/local-config.sh
. "$CLUSTER_DIR/lib/local-config.sh"
# shellcheck source=lib/local-down.sh
. "$CLUSTER_DIR/lib/local-down.sh"

# inside N CMD...: runs a command in a node's network namespace. Not by "ip netns exec", which mounts a new /sys: the
# cgroups below the old one are hidden then, and no container starts.
inside() {
  local node=$1
  shift
  nsenter --net="/run/netns/$(node_ns "$node")" -- "$@"
}

# start NAME N CMD...: a component in node N's namespace. The marks in its environment, which its children inherit, are
# how status, logs and down find it again: unlike a file of process numbers they cannot be stale or get lost.
start() {
  local name=$1 node=$2
  shift 2
  (
    # Nothing of the caller's may be kept open by what outlives it: a pipe would make its reader wait forever.
    for fd in /proc/self/fd/*; do
      fd=${fd##*/}
      [ "$fd" -le 2 ] || exec {fd}>&-
    done
    export ROOMCLUSTER_COMPONENT_OF=$CLUSTER_NAME ROOMCLUSTER_COMPONENT=$name
    cd "$RUN"
    exec setsid nsenter --net="/run/netns/$(node_ns "$node")" -- "$@" </dev/null >>"$RUN/log/$name.log" 2>&1
  ) &
}

kubectl_admin() { inside 1 "$BIN/kubectl" --kubeconfig "$PKI/admin.conf" "$@"; }
ctr_on() {
  local node=$1
  shift
  ctr -a "$SOCK/n$node/containerd.sock" "$@"
}

# ---- up -----------------------------------------------------------------------------------------------------

make_network() {
  local node other device ns
  for node in $(seq "$NODES"); do
    ns=$(node_ns "$node")
    ip netns add "$ns"
    ip -n "$ns" link set lo up
    if [ "$node" = 1 ]; then
      device=br0
      ip -n "$ns" link add br0 type bridge
    else
      device=eth0
      ip -n "$(node_ns 1)" link add "v$node" type veth peer name eth0 netns "$ns"
      ip -n "$(node_ns 1)" link set "v$node" master br0 up
    fi
    ip -n "$ns" addr add "$(node_ip "$node")/24" dev "$device"
    ip -n "$ns" link set "$device" up
    # A Service address must have some route before kube-proxy's rules get to see the packet.
    ip -n "$ns" route add 10.96.0.0/16 dev "$device"
    inside "$node" sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
  done
  for node in $(seq "$NODES"); do
    for other in $(seq "$NODES"); do
      [ "$node" = "$other" ] || ip -n "$(node_ns "$node")" route add "10.244.$other.0/24" via "$(node_ip "$other")"
    done
  done
}

start_api_server() {
  start etcd 1 "$BIN/etcd" --name=roomcluster --data-dir="$RUN/etcd" --unsafe-no-fsync --log-level=warn \
    --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 \
    --listen-peer-urls=http://127.0.0.1:2380
  start apiserver 1 "$BIN/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 \
    --advertise-address="$(node_ip 1)" --secure-port=6443 --service-cluster-ip-range=10.96.0.0/16 \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
    --client-ca-file="$PKI/ca.crt" --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" \
    --kubelet-client-certificate="$PKI/apiserver-kubelet-client.crt" \
    --kubelet-client-key="$PKI/apiserver-kubelet-client.key" --kubelet-preferred-address-types=InternalIP \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local \
    --service-account-key-file="$PKI/sa.pub" --service-account-signing-key-file="$PKI/sa.key" \
    --proxy-client-cert-file="$PKI/front-proxy-client.crt" --proxy-client-key-file="$PKI/front-proxy-client.key" \
    --requestheader-client-ca-file="$PKI/ca.crt" --requestheader-allowed-names=front-proxy-client \
    --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra-
}

start_controllers() {
  start controller-manager 1 "$BIN/kube-controller-manager" --kubeconfig="$PKI/controller-manager.conf" \
    --bind-address=127.0.0.1 --leader-elect=false --use-service-account-credentials \
    --kube-api-qps=200 --kube-api-burst=400 --flex-volume-plugin-dir="$RUN/volume-plugins" \
    --root-ca-file="$PKI/ca.crt" --service-account-private-key-file="$PKI/sa.key" \
    --cluster-signing-cert-file="$PKI/ca.crt" --cluster-signing-key-file="$PKI/ca.key" \
    --node-monitor-period=2s --node-monitor-grace-period=20s
  start scheduler 1 "$BIN/kube-scheduler" --kubeconfig="$PKI/scheduler.conf" --bind-address=127.0.0.1 \
    --leader-elect=false
}

# make_cgroup N: the root under which node N's kubelet keeps its pods; it must be there before the kubelet is.
make_cgroup() {
  local path=$CGROUP/n$1 hierarchy group controller
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir -p "/sys/fs/cgroup/$path"
    for group in "" "/$CGROUP" "/$path"; do
      for controller in cpuset cpu io memory hugetlb pids; do
        echo "+$controller" >"/sys/fs/cgroup$group/cgroup.subtree_control" || true
      done 2>/dev/null
    done
    return 0
  fi
  for hierarchy in /sys/fs/cgroup/*/; do
    [ ! -e "$hierarchy/cgroup.controllers" ] || continue
    mkdir -p "$hierarchy/$path"
    [ -e "$hierarchy/cpuset.cpus" ] || continue
    # A new set is empty, and no process can join it.
    for group in "$CGROUP" "$path"; do
      cat "$hierarchy/cpuset.cpus" >"$hierarchy/$group/cpuset.cpus"
      cat "$hierarchy/cpuset.mems" >"$hierarchy/$group/cpuset.mems"
    done
  done
}

start_containerd() {
  mkdir -p "$RUN/n$1"/{containerd,kubelet,cni,ipam,pods,opt} "$SOCK/n$1"
  write_cni "$1"
  write_containerd "$1"
  start "containerd-n$1" "$1" containerd -c "$RUN/n$1/containerd.toml"
}

# prepare_node N: all that can be done for a node before the API server answers.
prepare_node() {
  await 30 "containerd of node $1" ctr_on "$1" version
  import_image "$1" "$RUN/images/pause-1.tar" >/dev/null
  make_cgroup "$1"
  write_kubelet "$1"
  write_proxy "$1"
}

start_node() {
  start "kubelet-n$1" "$1" "$BIN/kubelet" --config="$RUN/n$1/kubelet.yaml" --kubeconfig="$PKI/n$1.conf" \
    --root-dir="$RUN/n$1/kubelet" --cert-dir="$RUN/n$1/kubelet/pki" --hostname-override="n$1" \
    --node-ip="$(node_ip "$1")"
  start "proxy-n$1" "$1" "$BIN/kube-proxy" --config="$RUN/n$1/proxy.yaml"
}

# await_nodes: also for the account and the certificate that every pod mounts; the first pods would wait for them.
await_nodes() {
  local node
  await 60 'the default service account' kubectl_admin get serviceaccount default
  await 60 'the root certificate' kubectl_admin get configmap kube-root-ca.crt
  for node in $(seq "$NODES"); do
    await 60 "node n$node" kubectl_admin get node "n$node"
    kubectl_admin wait --for=condition=Ready "node/n$node" --timeout=60s >/dev/null
  done
}

local_up() {
  local node
  BIN=$(build_dir)
  [ -d "$BIN" ] || die 'the programs are not built (run: cluster build)'
  mkdir -p "$RUN"/{log,etcd,images}
  echo "$NODES" >"$RUN/nodes"
  "$CLUSTER_DIR/images" --out "$RUN/images" pause >/dev/null
  make_certificates
  make_network
  lap 'certificates and network'
  start_api_server
  for node in $(seq "$NODES"); do start_containerd "$node"; done
  for node in $(seq "$NODES"); do prepare_node "$node"; done
  lap 'API server and containerds started'
  # Components that find no API server wait longer and longer before they look again: they come up last.
  await 90 'the API server' kubectl_admin get --raw /readyz
  lap 'API server ready'
  start_controllers
  for node in $(seq "$NODES"); do start_node "$node"; done
  write_corefile
  await 30 'the objects of every cluster' apply_base_objects
  start coredns 1 "$BIN/coredns" -conf "$RUN/Corefile"
  await_nodes
  lap 'nodes ready'
  await 30 'the DNS server' inside 1 curl -fsS http://127.0.0.1:8182/ready
  lap 'DNS ready'
}

apply_base_objects() { base_objects | kubectl_admin apply -f -; }

# ---- in use -------------------------------------------------------------------------------------------------

local_exec_target() {
  EXEC_NS=/run/netns/$(node_ns 1)
  EXEC_IP=$(node_ip 1)
  EXEC_KUBECONFIG=$PKI/admin.conf
}

import_image() { ctr_on "$1" -n k8s.io images import "$2"; }

local_load() {
  local archive node pid
  local -a imports=()
  for archive; do
    for node in $(node_numbers); do
      import_image "$node" "$archive" >/dev/null &
      imports+=($!)
    done
  done
  for pid in "${imports[@]}"; do wait "$pid" || die 'an image could not be imported (see above)'; done
}

# local_cut N: the far end of the node's cable goes down. Its processes and pods run on, but reach nobody.
local_cut() {
  [ "$1" != 1 ] || die 'node 1 holds the control plane and cannot be cut off'
  ip -n "$(node_ns 1)" link set "v$1" down
}

local_heal() {
  [ "$1" != 1 ] || die 'node 1 holds the control plane and cannot be cut off'
  ip -n "$(node_ns 1)" link set "v$1" up
}

local_logs() {
  local node
  mkdir -p "$1/components"
  cp "$RUN"/log/*.log "$1/components/"
  for node in $(node_numbers); do
    [ ! -d "$RUN/n$node/pods" ] || cp -rL "$RUN/n$node/pods" "$1/pods-n$node" || true
  done
}

# local_status: memory in MiB, summed over a component and its children; PSS, so that what is shared counts once.
local_status() {
  local pid part pss
  printf '%-24s %9s %8s\n' COMPONENT PROCESSES PSS_MIB
  for pid in $(marked_pids); do
    part=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^ROOMCLUSTER_COMPONENT=//p')
    pss=$(awk '/^Pss:/ { print $2 }' "/proc/$pid/smaps_rollup")
    echo "${part:-?} ${pss:-0}"
  done 2>/dev/null | awk '{ n[$1]++; kib[$1] += $2; sum += $2 }
    END { for (p in n) printf "%-24s %9d %8.0f\n", p, n[p], kib[p] / 1024 | "sort"; close("sort")
          printf "%-24s %9s %8.0f\n", "all", "", sum / 1024 }'
  echo "pods: $(pod_pids | wc -w) processes"
}
