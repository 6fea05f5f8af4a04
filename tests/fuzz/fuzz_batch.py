"""Feed damaged batches to the decoder: each must be refused as MalformedBatch, or be a batch in every respect.

    python tests/fuzz/fuzz_batch.py [seconds] [seed]

Where the coverage-guided fuzzer atheris is installed it drives `one_input`; elsewhere a seeded random loop does, whose
seed is printed first and repeats the run. Half of the inputs get a checksum that fits, because otherwise nearly all
would be refused by it and nothing behind it would be tried.
"""

from __future__ import annotations

import importlib
import random
import struct
import sys
import time

from crc32c import crc32c

from lanner import batch
from lanner.batch import Codec
from lanner.errors import MalformedBatch


def seeds() -> list[bytes]:
    """Sound batches of every shape, to start from."""
    values = [b"value %d" % number * (number % 3) for number in range(9)]
    keys = [None if number % 4 == 0 else b"key %d" % number for number in range(9)]
    headers = [{"trace": b"%d" % number} if number % 2 else None for number in range(9)]
    found = []
    for codec in Codec:
        whole = batch.encode(
            values, keys=keys, headers=headers, timestamps=list(range(9)), codec=codec, dedup_id=b"once"
        )
        found += [whole, batch.extract(whole, [1, 3, 8]), batch.encode(values, codec=codec), batch.encode([b""])]
    return found


SEEDS = seeds()


def one_input(data: bytes) -> bool:
    """Decode one input, as it is and under a checksum that fits; true when something was sound."""
    sound = check(data)
    if len(data) >= batch.HEADER_BYTES:
        sealed = bytearray(data)
        struct.pack_into("<I", sealed, 8, len(sealed))
        struct.pack_into("<I", sealed, 4, crc32c(bytes(sealed[8:])))
        sound = check(bytes(sealed)) or sound
    return sound


def check(data: bytes) -> bool:
    try:
        decoded = batch.decode(data)
    except MalformedBatch as error:
        assert error.details["field"], "a refusal names the field"
        return False
    count = decoded.count
    assert len(decoded.values()) == len(decoded.keys()) == len(decoded.headers()) == count
    positions = list(range(count)) if decoded.positions is None else list(decoded.positions)
    again = batch.decode(decoded.extract(positions))
    assert again.values() == decoded.values()
    assert again.keys() == decoded.keys()
    assert again.headers() == decoded.headers()
    assert again.timestamps() == decoded.timestamps()
    assert again.message_checksums() == decoded.message_checksums()
    return True


def damaged(rng: random.Random) -> bytes:
    """A sound batch with a few random faults."""
    data = bytearray(rng.choice(SEEDS))
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(data))
        match rng.randrange(6):
            case 0:
                data[place] ^= 1 << rng.randrange(8)
            case 1:
                data[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2 if len(data) > 8:
                del data[place : place + rng.randint(1, 8)]
            case 3:
                data[place:place] = rng.randbytes(rng.randint(1, 8))
            case 4 if len(data) >= 4:
                place = min(place, len(data) - 4)
                struct.pack_into(
                    "<I", data, place, rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, rng.getrandbits(16)))
                )
            case _:
                data[place : place + 8] = bytes(8)
        if not data:
            break
    return bytes(data)


def run(seed: int, *, inputs: int | None = None, seconds: float | None = None) -> tuple[int, int]:
    """How many inputs were tried, and how many of them were sound."""
    rng = random.Random(seed)
    end = None if seconds is None else time.monotonic() + seconds
    tried = sound = 0
    while (inputs is None or tried < inputs) and (end is None or time.monotonic() < end):
        sound += one_input(damaged(rng))
        tried += 1
    return tried, sound


def main() -> None:
    try:
        atheris = importlib.import_module("atheris")
    except ModuleNotFoundError:
        seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
        seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 2**32
        print(f"seed {seed}, {seconds:g} s", flush=True)
        tried, sound = run(seed, seconds=seconds)
        print(f"{tried} inputs, {sound} of them sound, no fault found")
    else:
        atheris.Setup(sys.argv, one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
