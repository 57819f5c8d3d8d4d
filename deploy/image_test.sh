#!/usr/bin/env bash
# Builds the images of the Dockerfile and of gateway.Dockerfile with buildah, on a Debian base made with debootstrap, and
# one of that base with Python and the wheel of the programs; tests them by running them: tests/e2e/image_test.py.
# Usage: deploy/image_test.sh       Exit code 77: not tested, the last line says why.
# Needs root, buildah, debootstrap and an apt source of Debian bookworm. Base, layers and compiler cache stay in
# build/image; beside that buildah notes names of layers in /var/lib/containers/cache. The network serves apt and pip
# alone: the images run in a network of their own that has only loopback.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=bookworm
base=localhost/debian:$suite-slim  # what the Dockerfile's default, debian:bookworm-slim, finds before any registry
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
work=$PWD/build/image
bin=${RIVULET_BIN_DIR:-$PWD/build/release/bin}

skip() {
  echo "image_test.sh: skipped: $*" >&2
  exit 77
}
((EUID == 0)) || skip "needs root"
for tool in buildah debootstrap unshare nsenter setpriv python3; do
  command -v "$tool" >/dev/null || skip "$tool is not installed"
done
[[ -x build/venv/bin/pip ]] || skip "no build/venv; deploy/setup.sh --tests makes it"
unshare --mount --net --pid --ipc --uts --fork true 2>/dev/null || skip "this machine does not let root make namespaces"
# Where this machine gets its Debian packages, one "URI suite" a line.
# shellcheck disable=SC2016 # apt-get's own variables
sources=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' | sort -u |
  grep -E " $suite(-updates|-security)?\$" || true)
mirror=$(awk -v suite="$suite" '$2 == suite {print $1; exit}' <<<"$sources")
[[ -n $mirror ]] || skip "apt has no source of Debian $suite"
[[ -x $bin/rivulet ]] || { echo "image_test.sh: $bin/rivulet is not built; run deploy/demo.sh first" >&2; exit 2; }

mkdir -p "$work/tmp"
export TMPDIR=$work/tmp # buildah keeps the Dockerfile's compiler cache there
exec 9>"$work/lock"
flock 9
# vfs works everywhere and copies the whole root for every step; overlay copies nothing, where the kernel lets it.
for driver in overlay vfs; do
  store=(--root "$work/$driver" --runroot "$work/run-$driver" --storage-driver "$driver")
  buildah "${store[@]}" images >/dev/null 2>&1 && break
done
clean_up() {
  buildah "${store[@]}" rm --all >/dev/null 2>&1 || true
  umount "$work/rootfs" 2>/dev/null || true
}
trap clean_up EXIT

# quietly <log> <command...>: the command's output goes to the log, its end to the terminal if it fails.
quietly() {
  local log=$1
  shift
  if ! "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    echo "image_test.sh: failed: $*; whole output in $log" >&2
    return 1
  fi
}

make_base() {
  local rootfs=$work/rootfs container
  mkdir -p "$rootfs"
  mount -t tmpfs -o size=1g tmpfs "$rootfs" # dpkg waits for the disk after every file
  quietly "$work/debootstrap.log" debootstrap --variant=minbase "$suite" "$rootfs" "$mirror"
  awk '{print "deb", $1, $2, "main"}' <<<"$sources" >"$rootfs/etc/apt/sources.list"
  # Like Debian's own slim image: of the documentation only the licences, no waiting for the disk.
  printf '%s\n' 'path-exclude /usr/share/doc/*' 'path-include /usr/share/doc/*/copyright' force-unsafe-io \
    >"$rootfs/etc/dpkg/dpkg.cfg.d/slim"
  find "$rootfs/usr/share/doc" -type f ! -name copyright -delete
  find "$rootfs/dev" "$rootfs/var/lib/apt/lists" "$rootfs/var/cache/apt" -mindepth 1 -delete
  container=$(buildah "${store[@]}" from scratch)
  buildah "${store[@]}" add --quiet "$container" "$rootfs" / >/dev/null
  buildah "${store[@]}" config --cmd bash --env PATH="$path" "$container"
  buildah "${store[@]}" commit --quiet --rm "$container" "$base" >/dev/null
  umount "$rootfs"
}
has() { buildah "${store[@]}" inspect --type image "$1" >/dev/null 2>&1; }
if ! has "$base"; then
  echo "image_test.sh: making $base" >&2
  make_base
fi

# build <name> <buildah option...>: one image of the Dockerfile, or of another in the folder `context`. RUN steps see how
# this machine's apt reaches its sources (a proxy, say); the image does not.
apt-config dump --format '%f "%v";%n' Acquire >"$work/apt.conf"
build() {
  local name=$1 context=${context:-.} begin=$SECONDS
  shift
  quietly "$work/$name.log" buildah "${store[@]}" bud --isolation chroot --format docker --layers --pull-never \
    --volume "$work/apt.conf:/etc/apt/apt.conf.d/99machine:ro" --volume "$work/ccache.conf:/etc/ccache.conf:ro" --tag "localhost/$name" "$@" "$context"
  echo "image_test.sh: built $name in $((SECONDS - begin)) s" >&2
}
# The Dockerfile's compiler cache begins with this machine's, which holds most of the objects where the release preset was
# built before: same compiler, same flags. ccache.conf makes paths relative there, as deploy/test.sh does here.
# Leaves out the cache's folder tmp, to which compilers may be writing.
printf '%s = %s\n' hash_dir false sloppiness time_macros base_dir /rivulet >"$work/ccache.conf"
if cache=$(ccache --get-config cache_dir 2>/dev/null) && [[ -d $cache ]]; then
  mkdir -p "$work/empty"
  printf 'FROM %s\nRUN --mount=type=cache,target=/ccache cp -R --update /host-ccache/[!t]* /ccache/\n' "$base" >"$work/empty/Dockerfile"
  quietly "$work/ccache.log" buildah "${store[@]}" bud --isolation chroot --pull-never --no-cache \
    --volume "$cache:/host-ccache:ro" "$work/empty"
fi
# What pip downloads in the RUN steps, which see no package index: what deploy/setup.sh has left of it here.
printf '[global]\nno-index = true\nfind-links = /packages\n' >"$work/constraints.conf"
packages=(--volume "$PWD/build/constraints/packages:/packages:ro" --volume "$work/constraints.conf:/etc/pip.conf:ro")
build rivulet "${packages[@]}"
build rivulet-mnist "${packages[@]}" --target with-model --build-arg MODEL=model/zoo/mnist-linear

# Downloads the gateway's packages with this machine's pip; the RUN steps see them as a folder.
wheels=$work/wheels
mkdir -p "$wheels"
build/venv/bin/python - client/python/pyproject.toml >"$work/packages.txt" <<'END'
import sys, tomllib
file = tomllib.load(open(sys.argv[1], "rb"))
project = file["project"]
print(*file["build-system"]["requires"], *project["dependencies"], *project["optional-dependencies"]["gateway"], sep="\n")
END
machine=$(uname -m)
quietly "$work/wheels.log" build/venv/bin/pip download --disable-pip-version-check --dest "$wheels" --only-binary :all: \
  --python-version 3.11 --platform "manylinux_2_28_$machine" --platform "manylinux_2_17_$machine" --platform "manylinux2014_$machine" \
  --constraint tests/requirements.txt --requirement "$work/packages.txt"
printf '[global]\nno-index = true\nfind-links = /wheels\n' >"$work/pip.conf"
gateway=(--file deploy/gateway.Dockerfile --ignorefile deploy/gateway.Dockerfile.dockerignore
  --volume "$wheels:/wheels:ro" --volume "$work/pip.conf:/etc/pip.conf:ro")
build rivulet-gateway "${gateway[@]}"
build rivulet-python "${gateway[@]}" --target packages

# Tests the wheel of this machine's programs on Debian with only Python added: an early stage of the gateway's image.
mkdir -p "$work/wheel"
rm -f "$work"/wheel/*.whl
cp "$(RIVULET_BIN_DIR=$bin RIVULET_SOURCE_DIR=$PWD build/venv/bin/python tests/e2e/support/server_wheel.py)" "$work/wheel/"
cat >"$work/wheel/Dockerfile" <<END
FROM localhost/rivulet-python
COPY *.whl /
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install --no-index /*.whl
ENV PATH=/opt/venv/bin:$path
USER 65532:65532
STOPSIGNAL SIGTERM
HEALTHCHECK CMD ["rivulet", "health", "--target", "127.0.0.1:50051"]
ENTRYPOINT ["rivulet-server", "--listen", "0.0.0.0:50051"]
END
context=$work/wheel build rivulet-wheel

# The build stage with CUDA=ON, which fails without a working nvcc: the stage `packages` as its base, with this machine's
# toolkit mounted where it is here, so that deploy/test.sh has compiled the same objects. Everything else in CUDA base images, and
# their runtime variants, stays untested.
toolkit=$(readlink -m /usr/local/cuda)
if [[ -x $toolkit/bin/nvcc ]]; then
  build rivulet-packages "${packages[@]}" --target packages
  container=$(buildah "${store[@]}" from --pull-never localhost/rivulet-packages)
  buildah "${store[@]}" config --env PATH="$toolkit/bin:$path" "$container"
  buildah "${store[@]}" commit --quiet --rm "$container" localhost/cuda-devel >/dev/null
  build rivulet-cuda "${packages[@]}" --target build --build-arg CUDA=ON --build-arg BASE=localhost/cuda-devel --volume "$toolkit:$toolkit:ro"
else
  echo "image_test.sh: CUDA=ON not built: no $toolkit/bin/nvcc" >&2
fi

export RIVULET_IMAGE_BASE=$base RIVULET_IMAGE=localhost/rivulet RIVULET_IMAGE_WITH_MODEL=localhost/rivulet-mnist
export RIVULET_IMAGE_GATEWAY=localhost/rivulet-gateway RIVULET_IMAGE_WHEEL=localhost/rivulet-wheel
RIVULET_IMAGE_BUILDAH="buildah ${store[*]}" RIVULET_BIN_DIR=$bin RIVULET_SOURCE_DIR=$PWD \
  PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=tests/e2e/support unshare --net -- python3 tests/e2e/image_test.py
