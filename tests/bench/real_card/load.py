"""Work for all cards, in a process of its own:  python -m tests.bench.real_card.load SECONDS

Says "ready NAME" once it has begun, or "none" where neither torch nor cupy can be had.  The last three tenths of the
time copy from host to card, so that what a card receives over PCIe must exceed what it sends; before that, and after
it until somebody ends the process, matrices are multiplied.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

COPIES_FROM = 0.7  # of the time
_SIZE = 8192
_TURNS = 8
_MOST_AFTER = 300.0  # seconds, should nobody end it


def _torch() -> tuple[Callable[[], None], Callable[[], None]]:
    import torch

    if not torch.cuda.is_available():
        raise ImportError("torch sees no card")
    cards = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    matrices = [torch.rand(_SIZE, _SIZE, device=card, dtype=torch.float16) for card in cards]
    host = torch.empty(256 * 2**20, dtype=torch.uint8, pin_memory=True)

    def multiply() -> None:
        for _ in range(_TURNS):
            for matrix in matrices:
                matrix @ matrix
        _settled()

    def copy() -> None:
        for card in cards:
            host.to(card, non_blocking=True)
        _settled()

    def _settled() -> None:
        for card in cards:
            torch.cuda.synchronize(card)

    return multiply, copy


def _cupy() -> tuple[Callable[[], None], Callable[[], None]]:
    import cupy
    import numpy as np

    cards = [cupy.cuda.Device(number) for number in range(cupy.cuda.runtime.getDeviceCount())]
    matrices = []
    for card in cards:
        with card:
            matrices.append(cupy.random.rand(_SIZE, _SIZE, dtype=cupy.float32).astype(cupy.float16))
    host = np.zeros(256 * 2**20, dtype=np.uint8)

    def multiply() -> None:
        for _ in range(_TURNS):
            for card, matrix in zip(cards, matrices, strict=True):
                with card:
                    matrix @ matrix
        for card in cards:
            card.synchronize()

    def copy() -> None:
        for card in cards:
            with card:
                cupy.asarray(host)

    return multiply, copy


def main(seconds: float) -> int:
    """Work until ended."""
    for name, make in (("torch", _torch), ("cupy", _cupy)):
        try:
            multiply, copy = make()
        except Exception as error:
            print(f"{name}: {error}".splitlines()[0], file=sys.stderr, flush=True)
            continue
        multiply()
        print(f"ready {name}", flush=True)
        begun = time.monotonic()
        while (spent := time.monotonic() - begun) < seconds + _MOST_AFTER:
            (copy if COPIES_FROM * seconds <= spent < seconds else multiply)()
        return 0
    print("none", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
