# shellcheck shell=bash
# Installs the Debian packages that the cluster and its images are made from. Sourced by ../cluster.

POLICY=/usr/sbin/policy-rc.d
POLICY_SAVED=$POLICY.before-roomcluster

# dependencies: a path that must exist, and the package that has it. Told by path and not by package: where Docker's
# own containerd is installed, Debian's package of that name would throw it out.
dependencies() {
  cat <<'T'
/usr/bin/jq jq
/usr/bin/openssl openssl
/usr/bin/flock util-linux
/usr/bin/cc gcc
/usr/include/stdio.h libc6-dev
/usr/bin/curl curl
/bin/busybox busybox
/usr/sbin/mariadbd mariadb-server
/usr/bin/mariadb mariadb-client
/usr/bin/redis-server redis-server
/usr/bin/redis-cli redis-tools
T
  [ "$CLUSTER_BACKEND" = local ] || return 0
  cat <<'T'
/usr/bin/containerd containerd
/usr/sbin/runc runc
/usr/lib/cni/bridge containernetworking-plugins
/usr/sbin/iptables iptables
/usr/sbin/nft nftables
/usr/sbin/ip iproute2
/usr/bin/nsenter util-linux
/usr/sbin/sysctl procps
T
}

missing_packages() {
  local path package
  dependencies | while read -r path package; do
    [ -e "$path" ] && continue
    # A program may be found by another path; a plugin or header may not (there is a command called "bridge", too).
    case $path in */bin/* | */sbin/*) command -v "${path##*/}" >/dev/null && continue ;; esac
    echo "$package"
  done | sort -u
}

# Services stay stopped: Debian asks this script before it starts one, and 101 says no. The machine's own script, if
# there is one, is put back afterwards, also by the next run after a kill.
forbid_service_start() {
  restore_service_start
  [ ! -e "$POLICY" ] || mv "$POLICY" "$POLICY_SAVED"
  printf '#!/bin/sh\n# roomcluster: no service starts while its test dependencies are installed\nexit 101\n' >"$POLICY"
  chmod 755 "$POLICY"
}

restore_service_start() {
  if grep -qs '^# roomcluster:' "$POLICY"; then rm -f "$POLICY"; fi
  if [ -e "$POLICY_SAVED" ]; then mv "$POLICY_SAVED" "$POLICY"; fi
}

# disable_services PACKAGE...: what was just installed is not to run after the next boot either.
disable_services() {
  local package
  command -v systemctl >/dev/null || return 0
  for package; do
    case $package in
      containerd | redis-server) SYSTEMD_OFFLINE=1 systemctl disable "$package.service" ;;
      mariadb-server) SYSTEMD_OFFLINE=1 systemctl disable mariadb.service ;;
    esac >/dev/null 2>&1 || warn "could not disable the service of $package"
  done
}

cluster_deps() {
  local -a packages
  restore_service_start
  mapfile -t packages < <(missing_packages)
  if [ ${#packages[@]} = 0 ]; then
    say 'all packages are there'
    return 0
  fi
  say "installing ${packages[*]}"
  trap restore_service_start EXIT
  forbid_service_start
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 "${packages[@]}" >/dev/null
  disable_services "${packages[@]}"
  restore_service_start
  trap - EXIT
  mapfile -t packages < <(missing_packages)
  [ ${#packages[@]} = 0 ] || die "still missing after the installation: ${packages[*]}"
}
