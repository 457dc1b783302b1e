# shellcheck shell=bash
# Packs folders as one-layer image archives ("docker-archive"). Sourced by ../images, which says what goes in.
#
# The same folder always gives the same digest: order, owners and times of the archive's members are fixed.

fail() {
  echo "images: $*" >&2
  exit 1
}

# hash_of FILE...: by content.
hash_of() { cat -- "$@" | sha256sum | cut -c1-32; }

# libraries_of PROGRAM: the shared libraries that it loads, the loader among them; nothing for a static one.
libraries_of() {
  local listing
  listing=$(ldd "$1" 2>&1) || [[ $listing == *'not a dynamic executable'* ]] || fail "ldd $1: $listing"
  if grep -q 'not found' <<<"$listing"; then fail "a library of $1 is missing: $listing"; fi
  grep -o '/[^ ]*' <<<"$listing" || true
}

hash_with_libraries() {
  local -a libraries
  mapfile -t libraries < <(libraries_of "$1")
  hash_of "$1" "${libraries[@]}"
}

# add_libraries ROOT PROGRAM: at the very paths at which the program looks for them.
add_libraries() {
  local library
  libraries_of "$2" | while read -r library; do
    [ -e "$1$library" ] || install -D -m 755 "$(realpath "$library")" "$1$library"
  done
}

# add_program ROOT SOURCE DESTINATION: the program, less its debug information, and its libraries.
add_program() {
  local root=$1 source=$2 destination=$1$3 library
  install -D -m 755 "$(realpath "$source")" "$destination"
  # Names of functions stay, so that backtraces can be read; the rest would only make every load slower.
  strip --strip-debug "$destination" 2>/dev/null || true
  add_libraries "$root" "$source"
  # Before glibc 2.34, name look-ups load these at run time, so that ldd does not list them.
  for library in $(libraries_of "$source" | grep '/libc\.so\.6$' | xargs -r dirname)/libnss_{files,dns}.so.2; do
    [ ! -e "$library" ] || install -D -m 644 "$(realpath "$library")" "$root$library"
  done
}

# add_shell ROOT: busybox under all its names.
add_shell() {
  local applet
  mkdir -p "$1/bin"
  install -m 755 "$(realpath "$(command -v busybox)")" "$1/bin/busybox"
  add_libraries "$1" "$(command -v busybox)"
  for applet in $(busybox --list); do
    [ -e "$1/bin/$applet" ] || ln -s busybox "$1/bin/$applet"
  done
}

# add_base ROOT: what programs expect of any system: a name for the user, name look-ups, room for scratch files.
add_base() {
  mkdir -p "$1/etc"
  mkdir -m 1777 "$1/tmp"
  printf 'root:x:0:0:root:/:/bin/sh\nrooms:x:65532:65532:rooms:/:/bin/sh\n' >"$1/etc/passwd"
  printf 'root:x:0:\nrooms:x:65532:\n' >"$1/etc/group"
  printf 'hosts: files dns\n' >"$1/etc/nsswitch.conf"
}

# write_archive FILE NAME:TAG ROOT CONFIG SCRATCH: packs ROOT.
write_archive() {
  local file=$1 name=$2 root=$3 config=$4 scratch=$5 layer
  local -a fixed=(--sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=gnu)
  # Everything is readable for the user that the image runs as, whoever built it.
  chmod -R a+rX "$root"
  mkdir "$scratch/archive"
  tar -C "$root" "${fixed[@]}" -cf "$scratch/archive/layer.tar" .
  layer=$(sha256sum "$scratch/archive/layer.tar" | cut -d' ' -f1)
  jq -cn --argjson config "$config" --arg layer "sha256:$layer" --arg architecture "$(dpkg --print-architecture)" '{
    architecture: $architecture, os: "linux", created: "1970-01-01T00:00:00Z",
    config: ($config + {Env: (["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"] + ($config.Env // []))}),
    rootfs: {type: "layers", diff_ids: [$layer]},
    history: [{created: "1970-01-01T00:00:00Z", created_by: "e2e/cluster/images"}]}' >"$scratch/archive/config.json"
  jq -cn --arg name "$name" '[{Config: "config.json", RepoTags: [$name], Layers: ["layer.tar"]}]' \
    >"$scratch/archive/manifest.json"
  tar -C "$scratch/archive" "${fixed[@]}" -cf "$file.new.$$" manifest.json config.json layer.tar
  mv "$file.new.$$" "$file"
}

# make_image NAME:TAG INPUTS BUILD CONFIG: the archive, made by the function BUILD unless it was made of these INPUTS
# before.
make_image() {
  local name=$1 inputs=$2 build=$3 config=$4 file stamp scratch
  file=$OUT/$(tr ':/' '--' <<<"$name").tar
  stamp=$(printf '%s\n' "$name" "$inputs" "$config" "$(hash_of "$HERE/images" "$HERE/lib/image.sh")" |
    sha256sum | cut -d' ' -f1)
  if [ ! -e "$file" ] || [ "$(cat "$file.inputs" 2>/dev/null)" != "$stamp" ]; then
    mkdir -p "$OUT"
    scratch=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$scratch'" EXIT
    rm -f "$file.inputs"
    mkdir "$scratch/root"
    chmod 755 "$scratch/root"
    add_base "$scratch/root"
    "$build" "$scratch/root"
    write_archive "$file" "$PREFIX/$name" "$scratch/root" "$config" "$scratch"
    echo "$stamp" >"$file.inputs"
    rm -rf "$scratch"
    trap - EXIT
  fi
  echo "$file"
}
