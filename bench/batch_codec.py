"""What the batch format costs: microseconds a message, 100-byte values in batches of 600.

Encoding computes the checksum of each message; decoding verifies the checksum of the batch and makes every value.
Each figure is the best of several rounds, because the machine is shared.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from lanner import batch
from lanner.batch import Codec

COUNT = 600
ROUNDS = 15
CALLS = 40


def best_us(call: Callable[[], object]) -> float:
    """Microseconds a call, in the quietest round."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, perf_counter() - start)
    return best / CALLS * 1e6


def main() -> None:
    values = [f"{number:06d}".encode() + b"v" * 94 for number in range(COUNT)]
    keys = [f"customer-{number % 50}".encode() for number in range(COUNT)]
    plain = batch.encode(values)
    keyed = batch.encode(values, keys=keys)
    extract = batch.extract(keyed, range(0, COUNT, 2))
    figures: list[tuple[str, float, float | None]] = [
        ("encode", best_us(lambda: batch.encode(values)) / COUNT, 0.6),
        ("decode", best_us(lambda: batch.decode(plain).values()) / COUNT, 0.3),
        ("encode, keys", best_us(lambda: batch.encode(values, keys=keys)) / COUNT, None),
        ("decode, keys", best_us(lambda: (decoded := batch.decode(keyed)).values() and decoded.keys()) / COUNT, None),
        ("encode, lz4", best_us(lambda: batch.encode(values, codec=Codec.LZ4)) / COUNT, None),
        ("encode, zstd", best_us(lambda: batch.encode(values, codec=Codec.ZSTD)) / COUNT, None),
        ("extract half", best_us(lambda: batch.extract(keyed, range(0, COUNT, 2))) / (COUNT // 2), None),
        ("verify messages", best_us(lambda: batch.decode(extract).verify_messages()) / (COUNT // 2), None),
    ]
    for name, micros, target in figures:
        goal = f"  (at most {target})" if target else ""
        print(f"{name:<18} {micros:8.3f} µs a message{goal}")
    print(f"{'read_header':<18} {best_us(lambda: batch.read_header(plain)):8.3f} µs a batch  (at most 2.0)")
    print(f"{'verify':<18} {best_us(lambda: batch.verify(plain)):8.3f} µs a batch")


if __name__ == "__main__":
    main()
