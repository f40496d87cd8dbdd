#!/bin/sh
# Builds images without a registry and without a daemon: a base of Debian's packages by mmdebstrap, all else by buildah.
#
#     deploy/image/build.sh DIST OUT TARGET...
#
# DIST has the files of a release. Of each target, OUT gets an archive, TARGET.tar (OCI), and the unpacked system, TARGET/.
# BUILD_FLAGS go to `buildah build`, such as --volume for a configuration of pip.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dist=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2

export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
storage() { buildah --root "$out/storage" --runroot "$out/run" "$@"; }

if ! storage inspect --type image localhost/debian >/dev/null 2>&1; then
  mmdebstrap --quiet --variant=minbase --include=ca-certificates,usr-is-merged --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$out/debian.tar"
  base=$(storage from scratch)
  storage add --quiet "$base" "$out/debian.tar" /
  storage commit --quiet --rm "$base" localhost/debian
  rm "$out/debian.tar"
fi

for target in "$@"; do
  # shellcheck disable=SC2086 # several flags
  storage build --pull-never --layers --build-arg BASE=localhost/debian ${BUILD_FLAGS:-} \
    --target "$target" --tag "localhost/lorikeet-$target" --file "$here/Containerfile" "$dist"
  storage push --quiet "localhost/lorikeet-$target" "oci-archive:$out/$target.tar"
  made=$(storage from --pull-never "localhost/lorikeet-$target")
  rm -rf "${out:?}/$target"
  cp -a "$(storage mount "$made")" "$out/$target"
  storage rm "$made" >/dev/null
done
