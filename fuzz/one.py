"""One target in this process: `python -m fuzz.one TARGET LIBFUZZER_FLAGS… DIRECTORIES…`; it never returns."""

from __future__ import annotations

import sys
from importlib import import_module

import atheris

from fuzz.targets import ROOT, TARGETS


def main(argv: list[str]) -> None:
    """Instrument what the target names, import it, fuzz it."""
    target = TARGETS[argv[1]]
    sys.path[:0] = [str(ROOT), str(ROOT / "servers"), str(ROOT / "tests")]
    module, _, function = target.function.partition(":")
    with atheris.instrument_imports(include=list(target.instrumented)):
        function_under_test = getattr(import_module(module), function)
    again = f"{sys.executable} -m fuzz.one {argv[1]}"  # libFuzzer calls itself so to minimise a corpus
    atheris.Setup([again, *argv[2:]], function_under_test)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
