# shellcheck shell=bash
# The certificates of a local cluster: one authority, one key pair for each component, and the kubeconfigs that use
# them. All of it is thrown away with the cluster. Sourced by local.sh.

PKI=$RUN/pki

new_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }

make_authority() {
  mkdir -p "$PKI"
  chmod 700 "$PKI"
  new_key "$PKI/ca.key"
  openssl req -x509 -new -key "$PKI/ca.key" -subj "/CN=roomcluster-$CLUSTER_NAME" -days 30 -out "$PKI/ca.crt" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,digitalSignature,cRLSign
  # Service account tokens are signed with a key of their own.
  new_key "$PKI/sa.key"
  openssl ec -in "$PKI/sa.key" -pubout -out "$PKI/sa.pub" 2>/dev/null
}

# issue NAME SUBJECT [ALTERNATIVE_NAMES]: a certificate for both ends of a connection.
issue() {
  local name=$1 subject=$2 alternatives=${3:-} extensions=extendedKeyUsage=clientAuth,serverAuth
  [ -z "$alternatives" ] || extensions+=$'\nsubjectAltName='$alternatives
  new_key "$PKI/$name.key"
  openssl req -new -key "$PKI/$name.key" -subj "$subject" |
    openssl x509 -req -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -set_serial "0x$(openssl rand -hex 8)" -days 30 \
      -out "$PKI/$name.crt" -extfile <(echo "$extensions") 2>/dev/null
}

# write_kubeconfig NAME: $PKI/NAME.conf, by which NAME reaches the API server with its certificate.
write_kubeconfig() {
  cat >"$PKI/$1.conf" <<Y
apiVersion: v1
kind: Config
current-context: $CLUSTER_NAME
contexts:
- name: $CLUSTER_NAME
  context: {cluster: $CLUSTER_NAME, user: $1}
clusters:
- name: $CLUSTER_NAME
  cluster: {server: "https://$(node_ip 1):6443", certificate-authority-data: $(base64 -w0 "$PKI/ca.crt")}
users:
- name: $1
  user:
    client-certificate-data: $(base64 -w0 "$PKI/$1.crt")
    client-key-data: $(base64 -w0 "$PKI/$1.key")
Y
}

make_certificates() {
  local node name names
  names=DNS:localhost,IP:127.0.0.1,IP:$API_SERVICE_IP,IP:$(node_ip 1)
  for name in kubernetes kubernetes.default kubernetes.default.svc kubernetes.default.svc.cluster.local; do
    names+=,DNS:$name
  done
  make_authority
  issue apiserver /CN=kube-apiserver "$names"
  issue apiserver-kubelet-client /O=kubeadm:cluster-admins/CN=kube-apiserver-kubelet-client
  issue front-proxy-client /CN=front-proxy-client
  issue admin /O=system:masters/CN=kubernetes-admin
  issue controller-manager /CN=system:kube-controller-manager
  issue scheduler /CN=system:kube-scheduler
  issue proxy /CN=system:kube-proxy
  issue coredns /CN=roomcluster:coredns
  for name in admin controller-manager scheduler proxy coredns; do write_kubeconfig "$name"; done
  for node in $(seq "$NODES"); do
    issue "n$node" "/O=system:nodes/CN=system:node:n$node"
    write_kubeconfig "n$node"
  done
}
