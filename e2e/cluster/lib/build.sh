# shellcheck shell=bash
# Builds the cluster's programs from the Go modules pinned under tools/. Sourced by ../cluster.
#
# The result lives in a cache folder outside the checkout, named by the hash of everything that decides its
# content, so that every clone on a machine shares one build. A folder of that name is always complete: it is
# filled under another name and renamed at the end.

BUILD_DIR=$CLUSTER_DIR/tools
CACHE_ROOT=${ROOMCLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/roomcluster}

# build_inputs: the files whose content decides what is built for the backend.
build_inputs() {
  local module
  for module in $(build_modules); do
    find "$BUILD_DIR/$module" -maxdepth 1 -type f \( -name 'go.*' -o -name '*.go' \)
  done | LC_ALL=C sort
  echo "$CLUSTER_DIR/lib/build.sh"
}

# build_modules: the modules that the backend needs, as folders below tools/.
build_modules() {
  case $CLUSTER_BACKEND in
    local) echo . coredns ;;
    kind) echo . kind ;;
  esac
}

# build_dir: where the programs are, whether or not they have been built yet.
build_dir() {
  local hash
  # Content only, never a path: two checkouts with equal pins must name the same folder.
  hash=$(build_inputs | xargs cat | sha256sum | cut -c1-16)
  echo "$CACHE_ROOT/$CLUSTER_BACKEND-$(uname -m)-$hash"
}

# go_version_of MODULE: the pinned version, read from go.mod so that it is written down only once.
go_version_of() { go list -m -f '{{.Version}}' "$1"; }

# build_flags: linker flags that give the programs the versions which released ones carry.
# Without them the API server reports v0.0.0-master, and clients that look at /version misjudge it.
build_flags() {
  local kubernetes minor package flags='-s -w'
  kubernetes=$(go_version_of k8s.io/kubernetes)
  minor=$(cut -d. -f2 <<<"$kubernetes")
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=$kubernetes -X $package.gitMajor=1 -X $package.gitMinor=$minor"
    flags+=" -X $package.gitTreeState=clean -X $package.gitCommit=unknown"
    flags+=" -X $package.buildDate=1970-01-01T00:00:00Z"
  done
  flags+=" -X helm.sh/helm/v3/internal/version.version=$(go_version_of helm.sh/helm/v3)"
  flags+=" -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1"
  flags+=" -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=$minor"
  flags+=" -X sigs.k8s.io/cri-tools/pkg/version.Version=$(go_version_of sigs.k8s.io/cri-tools)"
  echo "$flags"
}

# build_into DIR: compiles all that the backend needs into DIR.
build_into() {
  local out=$1 kubernetes=k8s.io/kubernetes/cmd flags
  local -a packages=("$kubernetes/kubectl" helm.sh/helm/v3/cmd/helm)
  if [ "$CLUSTER_BACKEND" = local ]; then
    packages+=("$kubernetes/kube-apiserver" "$kubernetes/kube-controller-manager" "$kubernetes/kube-scheduler"
      "$kubernetes/kubelet" "$kubernetes/kube-proxy" sigs.k8s.io/cri-tools/cmd/crictl)
  fi
  export CGO_ENABLED=0 GOFLAGS=-mod=readonly GOTOOLCHAIN=local GOWORK=off
  cd "$BUILD_DIR"
  flags=$(build_flags)
  # One command for all of them: packages that they share are compiled once, and links overlap.
  say "compiling ${packages[*]##*/}"
  go build -trimpath -ldflags "$flags" -o "$out/" "${packages[@]}"
  case $CLUSTER_BACKEND in
    local)
      say 'compiling etcd'
      # The package is the root of its module and would be called "server".
      go build -trimpath -ldflags '-s -w' -o "$out/etcd" go.etcd.io/etcd/server/v3
      say 'compiling coredns'
      cd "$BUILD_DIR/coredns"
      go build -trimpath -ldflags '-s -w -X github.com/coredns/coredns/coremain.GitCommit=unknown' -o "$out/coredns" .
      ;;
    kind)
      say 'compiling kind'
      cd "$BUILD_DIR/kind"
      go build -trimpath -ldflags '-s -w' -o "$out/kind" sigs.k8s.io/kind
      ;;
  esac
}

# require_go: refuses with a clear word where the compiler is missing or too old for the pins.
require_go() {
  local want have
  command -v go >/dev/null || die 'the Go compiler is not on PATH'
  want=$(awk '$1 == "go" { print $2 }' "$BUILD_DIR/go.mod")
  have=$(GOTOOLCHAIN=local go env GOVERSION | sed 's/^go//')
  printf '%s\n%s\n' "$want" "$have" | sort -V -C || die "Go $want or newer is needed, this is $have"
}

# cluster_build: a no-op when the folder is there.
cluster_build() {
  local dir partial lock
  dir=$(build_dir)
  if [ -d "$dir" ]; then
    say "programs are built: $dir"
    return 0
  fi
  require_go
  mkdir -p "$CACHE_ROOT"
  # One build at a time: a second one would only slow down the first, and then finds its result.
  exec {lock}>"$CACHE_ROOT/build.lock"
  flock "$lock"
  if [ -d "$dir" ]; then
    say "programs are built: $dir"
    return 0
  fi
  # Whoever holds the lock owns every half result: their builders are dead.
  rm -rf "$CACHE_ROOT"/partial.*
  partial=$CACHE_ROOT/partial.$$
  mkdir "$partial"
  say 'building the programs (about 6 minutes on 2 cores when nothing is cached)'
  (build_into "$partial")
  mv "$partial" "$dir"
  exec {lock}>&-
  say "built: $dir ($(du -sh "$dir" | cut -f1))"
}
