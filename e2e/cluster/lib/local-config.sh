# shellcheck shell=bash
# The configuration files of a local cluster's components. Sourced by local.sh. N is a node's number everywhere.

# write_cni N: pods of a node share a bridge; other nodes' pods are reached by the routes of make_network.
write_cni() {
  cat >"$RUN/n$1/cni/10-pods.conflist" <<J
{"cniVersion": "0.4.0", "name": "roomcluster-$CLUSTER_NAME-n$1", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true, "ipMasq": false,
   "ipam": {"type": "host-local", "dataDir": "$RUN/n$1/ipam", "ranges": [[{"subnet": "10.244.$1.0/24"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
J
}

# write_containerd N: every folder that containerd, its shims and runc would share with another containerd is our own.
write_containerd() {
  local snapshotter=overlayfs
  # The overlay of an overlay (as in a container) cannot be mounted; copying is slower but works.
  [ "$(stat -f -c %T "$RUN")" != overlayfs ] || snapshotter=native
  cat >"$RUN/n$1/containerd.toml" <<T
version = 2
root = "$RUN/n$1/containerd"
state = "$SOCK/n$1/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp"]

[grpc]
  address = "$SOCK/n$1/containerd.sock"

[plugins."io.containerd.internal.v1.opt"]
  path = "$RUN/n$1/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "roomcluster.local/pause:1"
  # Pods' network namespaces are mounted below "state", where "down" finds them, not among everybody's.
  netns_mounts_under_state_dir = true
  # A process without CAP_SYS_RESOURCE may not lower its own OOM score; without this no pod would start there.
  restrict_oom_score_adj = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$RUN/n$1/cni"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "$snapshotter"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "$SOCK/n$1/runc"
T
}

# write_kubelet N: a kubelet as kubeadm sets it up, but for its folders and for being quicker.
write_kubelet() {
  printf 'search .\n' >"$RUN/n$1/resolv.conf"
  cat >"$RUN/n$1/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $PKI/ca.crt}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix://$SOCK/n$1/containerd.sock
cgroupDriver: cgroupfs
# Two kubelets under one root would each remove the other's pods.
cgroupRoot: /$CGROUP/n$1
failCgroupV1: false
failSwapOn: false
clusterDNS: [$DNS_SERVICE_IP]
clusterDomain: cluster.local
resolvConf: $RUN/n$1/resolv.conf
podLogsDir: $RUN/n$1/pods
volumePluginDir: $RUN/n$1/volume-plugins
# Images are imported, not pulled: one that was collected would never come back.
imageGCHighThresholdPercent: 100
imageMaximumGCAge: 0s
evictionHard:
  memory.available: 100Mi
  nodefs.available: 1%
  nodefs.inodesFree: 1%
  imagefs.available: 1%
  imagefs.inodesFree: 1%
syncFrequency: 10s
nodeStatusUpdateFrequency: 4s
shutdownGracePeriod: 0s
Y
}

write_proxy() {
  cat >"$RUN/n$1/proxy.yaml" <<Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: $PKI/proxy.conf}
hostnameOverride: n$1
bindAddress: $(node_ip "$1")
clusterCIDR: 10.244.0.0/16
mode: iptables
# Only the machine's first network namespace may change these; zero leaves them alone.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
Y
}

# CoreDNS runs beside the control plane, not in a pod: it needs no image and answers before the first pod starts.
write_corefile() {
  cat >"$RUN/Corefile" <<C
.:53 {
    bind $(node_ip 1)
    errors
    health 127.0.0.1:8181
    ready 127.0.0.1:8182
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        kubeconfig $PKI/coredns.conf
        pods insecure
        ttl 5
    }
    cache 5
}
C
}

base_objects() {
  cat <<Y
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "roomcluster:coredns"}
rules:
- {apiGroups: [""], resources: [services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "roomcluster:coredns"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "roomcluster:coredns"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "roomcluster:coredns"}]
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  clusterIP: $DNS_SERVICE_IP
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-1, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
endpoints: [{addresses: ["$(node_ip 1)"], conditions: {ready: true}}]
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
# What kubeadm grants to the API server's own client, so that logs, exec and port-forward reach the kubelets.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "kubeadm:cluster-admins"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "kubeadm:cluster-admins"}]
Y
}
