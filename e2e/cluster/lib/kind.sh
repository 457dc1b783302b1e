# shellcheck shell=bash
# The "kind" backend: nodes are Docker containers. Sourced by ../cluster.
#
# Commands reach the cluster by entering the network namespace of the control plane's container, as the local backend
# enters node 1's: Services and pods are reachable there, and no port of the machine is taken.

KIND_CLUSTER=roomcluster-$CLUSTER_NAME
DNS_SERVICE_IP=10.96.0.10
BIN=$(build_dir)

kind_program() { "$BIN/kind" "$@"; }

# node_name N: kind's own names. The first worker has no number.
node_name() {
  case $1 in
    1) echo "$KIND_CLUSTER-control-plane" ;;
    2) echo "$KIND_CLUSTER-worker" ;;
    *) echo "$KIND_CLUSTER-worker$(($1 - 1))" ;;
  esac
}

kind_config() {
  cat <<'Y'
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
kubeadmConfigPatches:
- |
  kind: ClusterConfiguration
  controllerManager:
    extraArgs:
      node-monitor-period: 2s
      node-monitor-grace-period: 20s
- |
  kind: KubeletConfiguration
  syncFrequency: 10s
  nodeStatusUpdateFrequency: 4s
  imageGCHighThresholdPercent: 100
nodes:
- role: control-plane
Y
  for _ in $(seq 2 "$NODES"); do echo '- role: worker'; done
}

kind_up() {
  [ -d "$BIN" ] || die 'the programs are not built (run: cluster build)'
  mkdir -p "$RUN"
  echo "$NODES" >"$RUN/nodes"
  kind_config >"$RUN/kind.yaml"
  # The node image is the one that the pinned version of kind was released with. What fails stays, for its logs.
  kind_program create cluster --name "$KIND_CLUSTER" --config "$RUN/kind.yaml" --kubeconfig "$RUN/outer.conf" --retain
  lap 'control plane started'
  # Inside the control plane's namespace the API server is on the loopback address, which its certificate names.
  kind_program get kubeconfig --name "$KIND_CLUSTER" --internal |
    sed 's#server: https://.*#server: https://127.0.0.1:6443#' >"$RUN/admin.conf"
  kind_exec_target
  # Pods may run on each node, as in the local backend. With one node, kind has seen to that itself.
  [ "$NODES" = 1 ] || kubectl_admin taint nodes "$(node_name 1)" node-role.kubernetes.io/control-plane- >/dev/null
  kubectl_admin wait --for=condition=Ready nodes --all --timeout=120s >/dev/null
  kubectl_admin --namespace kube-system rollout status deployment/coredns --timeout=120s >/dev/null
  lap 'nodes and DNS ready'
}

kubectl_admin() { nsenter --net="$EXEC_NS" -- "$BIN/kubectl" --kubeconfig "$EXEC_KUBECONFIG" "$@"; }

kind_exec_target() {
  local pid
  pid=$(docker inspect -f '{{.State.Pid}}' "$(node_name 1)")
  EXEC_NS=/proc/$pid/ns/net
  EXEC_IP=$(docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$(node_name 1)")
  EXEC_KUBECONFIG=$RUN/admin.conf
}

kind_load() {
  local archive
  for archive; do kind_program load image-archive "$archive" --name "$KIND_CLUSTER" >/dev/null; done
}

# kind_cut N: drops all packets at the container's door. Not by disconnecting the container, which could come back
# with another address.
kind_cut() {
  [ "$1" != 1 ] || die 'node 1 holds the control plane and cannot be cut off'
  cut_rules "$1" -C 2>/dev/null || cut_rules "$1" -I
}

kind_heal() {
  [ "$1" != 1 ] || die 'node 1 holds the control plane and cannot be cut off'
  while cut_rules "$1" -D 2>/dev/null; do :; done
}

# cut_rules N ACTION: checks (-C), inserts (-I) or deletes (-D) the rules that cut node N off.
cut_rules() {
  docker exec "$(node_name "$1")" iptables -w "$2" INPUT -i eth0 -j DROP &&
    docker exec "$(node_name "$1")" iptables -w "$2" OUTPUT -o eth0 -j DROP &&
    docker exec "$(node_name "$1")" iptables -w "$2" FORWARD -i eth0 -j DROP &&
    docker exec "$(node_name "$1")" iptables -w "$2" FORWARD -o eth0 -j DROP
}

kind_logs() { kind_program export logs "$1" --name "$KIND_CLUSTER" >/dev/null; }

kind_status() {
  local -a nodes
  mapfile -t nodes < <(kind_program get nodes --name "$KIND_CLUSTER")
  docker stats --no-stream --format 'table {{.Name}}\t{{.MemUsage}}\t{{.PIDs}}' "${nodes[@]}"
}

# kind_down: by label and not by the kind program, which may not be built when remains are swept.
kind_down() {
  local containers
  containers=$(docker ps -aq --filter "label=io.x-k8s.kind.cluster=$KIND_CLUSTER") || die 'Docker does not answer'
  [ -z "$containers" ] || xargs docker rm -f -v <<<"$containers" >/dev/null
}

save_machine_state() { :; }
restore_machine_state() { :; }
