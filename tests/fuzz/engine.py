"""The process that fuzzes one target until it is told to stop: ``python -m tests.fuzz.engine TARGET OPTION... FOLDER...``.

Options and folders are those of libFuzzer, which atheris drives.
"""

from __future__ import annotations

import sys

import atheris

from tests.fuzz import corpus

with atheris.instrument_imports(include=["exporter", "msgspec", "yaml", "http"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    name = sys.argv.pop(1)

    def check(data: bytes) -> None:
        try:
            TARGETS[name].check(data)
        except BaseException:
            print(f"\nfails: {corpus.keep(name, data)}", flush=True)  # libFuzzer's own copy does not always come
            raise

    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
