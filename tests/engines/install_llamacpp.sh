#!/usr/bin/env bash
# Builds llama.cpp's own server for this CPU, and the tiny model as a GGUF file (10 to 30 minutes on two cores):
#   tests/engines/install_llamacpp.sh [DIRECTORY]        default: .engines/llamacpp of this checkout
# The source is the one that the llama-cpp-python of this version carries; a compiler (C++17) is needed, cmake and
# ninja come from the package index. What is there already, of the same version, is left alone. No CI runs it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=${1:-$here/../../.engines/llamacpp}
version=0.3.36

pins=$(cat "$here/install_llamacpp.sh" "$here/tiny_gguf.py" | cksum)
if [[ -f $place/installed && $(cat "$place/installed") == "$pins" ]]; then
    echo "llama-server is installed in $place"
    exit 0
fi

base=$(command -v python3.11 || command -v python3)
mkdir -p "$place"
[[ -x $place/venv/bin/python ]] || "$base" -m venv "$place/venv"
pip() { "$place/venv/bin/python" -m pip "$@" --quiet --disable-pip-version-check; }
pip install cmake ninja gguf tokenizers numpy

if [[ ! -x $place/llama-server || ! -f $place/version || $(cat "$place/version") != "$version" ]]; then
    pip download --no-deps --no-binary llama-cpp-python -d "$place" "llama-cpp-python==$version"
    tar -xzf "$place/llama_cpp_python-$version.tar.gz" -C "$place"
    source=$place/llama_cpp_python-$version/vendor/llama.cpp
    # The server alone: no pages, no pictures, no downloads of its own.
    "$place/venv/bin/cmake" -S "$source" -B "$place/build" -G Ninja -DCMAKE_MAKE_PROGRAM="$place/venv/bin/ninja" \
        -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
        -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
    "$place/venv/bin/cmake" --build "$place/build" --target llama-server
    cp "$place/build/bin/llama-server" "$place/llama-server"
    echo "$version" >"$place/version"
    rm -rf "$place/build" "$place/llama_cpp_python-$version" "$place/llama_cpp_python-$version.tar.gz"
fi

"$place/venv/bin/python" "$here/tiny_gguf.py" "$place/tiny.gguf"
"$place/llama-server" --version
echo "$pins" >"$place/installed"
