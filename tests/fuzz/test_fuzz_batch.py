"""A short run of the fuzz target, so that it cannot rot, and a proof that it would notice."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from lanner import batch
from lanner.errors import MalformedBatch


@pytest.fixture(scope="module")
def target() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_batch", Path(__file__).with_name("fuzz_batch.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_damaged_batches_are_refused_or_sound(target: ModuleType) -> None:
    tried, sound = target.run(20_240_101, inputs=4_000)
    assert tried == 4_000
    assert 50 < sound < 3_950  # both outcomes are tried, or the run says little


def test_every_seed_is_sound(target: ModuleType) -> None:
    assert all(target.check(seed) for seed in target.SEEDS)


def test_a_decoder_that_fails_in_another_way_is_noticed(target: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(data: bytes) -> batch.Batch:
        try:
            return sound_decode(data)
        except MalformedBatch:
            raise IndexError("read past the end") from None

    sound_decode = batch.decode
    monkeypatch.setattr(batch, "decode", careless)
    with pytest.raises(IndexError):
        target.run(1, inputs=200)
