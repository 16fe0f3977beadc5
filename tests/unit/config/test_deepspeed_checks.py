"""The table of DeepSpeed's keys against the installed DeepSpeed, which is imported only here."""

from __future__ import annotations

from typing import Any

import pytest

from dstransformer.config.deepspeed_checks import FLAG, TOP_LEVEL_KEYS

config = pytest.importorskip("deepspeed.runtime.config")


class Recorder(dict[str, Any]):
    """A DeepSpeed JSON that records which keys are looked up."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def keys(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> Recorder:
        return self


def test_top_level_keys_are_those_that_deepspeed_looks_up() -> None:
    recorder = Recorder({"train_batch_size": 1, "train_micro_batch_size_per_gpu": 1})
    config.DeepSpeedConfig(recorder)
    assert recorder.asked | {"bfloat16"} == TOP_LEVEL_KEYS.keys()


def test_top_level_flags_have_boolean_defaults_in_deepspeed() -> None:
    read = config.DeepSpeedConfig({"train_batch_size": 1, "train_micro_batch_size_per_gpu": 1})
    defaults = {
        name: getattr(read, name) for name in TOP_LEVEL_KEYS if TOP_LEVEL_KEYS[name] == FLAG and hasattr(read, name)
    }
    assert len(defaults) > 5
    assert {type(default) for default in defaults.values()} == {bool}
