#!/usr/bin/env bash
# Builds libzip as an archive into the folder of manylinux_sysroot.py, from the distribution's source package: the
# distribution has it as a shared library only, which needs its own glibc and five other libraries. usage: libzip.sh VENV SYSROOT
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(cd "$1" && pwd) sysroot=$(cd "$2" && pwd)
work=build/wheels/libzip
rm -rf "$work"
mkdir -p "$work/lists/partial"
# Source packages lie where the binary ones do: apt's own settings, and lists beside them.
apt-get indextargets --format 'deb-src $(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
  sort -u >"$work/sources.list"
apt=(apt-get -qq -o "Dir::Etc::sourcelist=$PWD/$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
  -o "Dir::State::lists=$PWD/$work/lists" -o APT::Sandbox::User=)
"${apt[@]}" update || true  # a repository without sources is not an error: the next line is
(cd "$work" && "${apt[@]}" source --download-only libzip >/dev/null)
mkdir "$work/source"
tar -xf "$work"/libzip_*.orig.tar.* -C "$work/source" --strip-components=1
disabled=()
for part in BZIP2 LZMA ZSTD COMMONCRYPTO GNUTLS MBEDTLS OPENSSL WINDOWS_CRYPTO; do disabled+=("-DENABLE_$part=OFF"); done
for part in SHARED_LIBS TOOLS REGRESS EXAMPLES DOC; do disabled+=("-DBUILD_$part=OFF"); done
{
  "$venv/bin/cmake" -S "$work/source" -B "$work/build" -G Ninja -DCMAKE_MAKE_PROGRAM="$venv/bin/ninja" \
    -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/ManyLinux.cmake" -DGRAFT_SYSROOT="$sysroot" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_INSTALL_PREFIX="$sysroot/usr" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_POLICY_VERSION_MINIMUM=3.5 "${disabled[@]}"
  "$venv/bin/cmake" --build "$work/build"
  "$venv/bin/cmake" --install "$work/build"
} >"$work/log" 2>&1 || { tail -40 "$work/log" >&2; exit 1; }
