#!/usr/bin/env bash
# Installs a real SGLang server for machines without a GPU into a virtual environment of its own (1.6 GB, a minute):
#   tests/engines/install_sglang.sh [DIRECTORY]        default: .engines/sglang of this checkout
# What is there already, with the same pins, is left alone. x86-64 with glibc 2.34, as its wheels are.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${1:-$here/../../.engines/sglang}
torch=2.13.0 # in place of the newer one that SGLang asks for: the one of install.sh

pins=$(cat "$here/install_sglang.sh" "$here/requirements-sglang.txt" | cksum)
if [[ -f $venv/installed && $(cat "$venv/installed") == "$pins" ]]; then
    echo "SGLang is installed in $venv"
    exit 0
fi

base=$(command -v python3.11 || command -v python3)
"$base" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
[[ -x $venv/bin/python ]] || "$base" -m venv "$venv"
# Uncompiled: Python compiles what a server imports, a fifth of it, and keeps that.
pip() { "$venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check "$@"; }

pip "torch==$torch"
pip --no-deps -r "$here/requirements-sglang.txt"

# SGLang imports names of three packages when it starts: sgl_kernel (its own kernels, for GPUs),
# torchvision (for models of pictures) and triton (1 GB, for GPUs). A text model on a CPU calls none of
# them, so that names are enough: whatever is taken from these packages is there, and fails when called,
# but for triton's decorators, which are called when a module is imported.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for package in sgl_kernel torchvision triton; do
    mkdir -p "$site/$package"
    cat >"$site/$package/__init__.py" <<'PYTHON'
"""A stub: every name and every module of this package is there, and fails when it is called."""

import importlib.abc
import importlib.machinery
import sys
import types

__version__ = {"torchvision": "0.28.0", "triton": "3.9.0"}.get(__name__, "0.0.0")
PACKAGE = __name__


class Names(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, item):
        return cls

    def __call__(cls, *args, **kwargs):
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            return args[0]  # decorated
        if PACKAGE == "triton" and (args or kwargs):
            return cls  # a decorator with arguments, or one of its arguments: @triton.autotune(configs=…)
        raise RuntimeError(f"{PACKAGE} is a stub")  # as triton's with no driver: SGLang then takes "cpu"


class Missing(metaclass=Names):
    pass


class Module(types.ModuleType):
    def __getattr__(self, name):
        return named(name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith(PACKAGE + "."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


def named(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Missing


sys.meta_path.append(Finder())
__getattr__ = named
PYTHON
done

cd "$venv" # away from directories that could be taken for packages
HF_HUB_OFFLINE=1 SGLANG_USE_CPU_ENGINE=1 bin/python -W ignore -c '
import sglang, sglang.srt.entrypoints.http_server, sglang.srt.managers.scheduler, torch
print("sglang", sglang.__version__, "torch", torch.__version__)'
echo "$pins" >installed
