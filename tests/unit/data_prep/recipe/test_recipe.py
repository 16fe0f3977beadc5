"""The models of a recipe, without a command line: defaults by source, bounds, and what the manifest records."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from data_prep.recipe.options import EncodeOptions, FilesOptions, Wmt14Options
from data_prep.recipe.recipe import Recipe
from data_prep.stages.encode import _command_line


@pytest.mark.parametrize(("source", "tokenizer", "vocab_size", "coverage"), [
    ({"source": "toy"}, "bpe", 1000, 1.0),
    ({"source": "files", "src_lang": "en", "tgt_lang": "de"}, "bpe", 37_000, 1.0),
    ({"source": "wmt14"}, "bpe", 37_000, 0.9998),
    ({"source": "wmt14", "pair": "fr-en"}, "unigram", 32_000, 0.9998),
])  # fmt: skip
def test_the_vocabulary_has_defaults_by_source(
    source: dict[str, Any], tokenizer: str, vocab_size: int, coverage: float
) -> None:
    recipe = Recipe.model_validate({"sources": {"text": source}})
    vocab = recipe.vocab
    assert (vocab.tokenizer, vocab.vocab_size, vocab.character_coverage) == (tokenizer, vocab_size, coverage)
    changed = Recipe.model_validate({"sources": {"text": source}, "vocab": {"vocab_size": 50}})
    assert changed.vocab == vocab.model_copy(update={"vocab_size": 50})


def test_a_record_holds_what_determines_the_corpus() -> None:
    options = Wmt14Options(pair="fr-en", hub_path=Path("/data/copy"), cache_dir=Path("/cache"), offline=True)
    assert options.record() == {
        "source": "wmt14", "pair": "fr-en", "src_lang": "en", "tgt_lang": "fr", "revision": "main", "hub_path": "copy",
    }  # fmt: skip
    given = Recipe.model_validate({"sources": {"toy": {"source": "toy"}}, "vocab": {"tokenizer_model": "/m/spm.model"}})
    assert given.vocab.record() == {"tokenizer_model": "spm.model"}
    assert EncodeOptions().record() == {"max_tokens": 256, "shard_rows": 1_000_000}


@pytest.mark.parametrize(
    "names", [["a.en"], ["a b.en"], ["it's;&\".en"], ["a b.en", "c'd.en"], ["https://x/a.en?b=1&c"]]
)
def test_files_are_words_of_the_recorded_command(names: list[str]) -> None:
    options = FilesOptions.model_validate({"src_lang": "en", "tgt_lang": "de", "src": names, "tgt": ["x.de"]})
    words = shlex.split(_command_line(options.record()))
    assert words[words.index("--src") + 1 : words.index("--tgt")] == names


@pytest.mark.parametrize(("options", "key"), [
    ({"src_tokenizer_model": "spm"}, "--src-tokenizer-model"),
    ({"joint": False, "tokenizer_model": "spm"}, "--no-joint"),
    ({"joint": False, "src_tokenizer_model": "spm"}, "--no-joint"),
    ({"tokenizer_model": "spm", "vocab_size": 300}, "--vocab-size"),
])  # fmt: skip
def test_tokenizers_that_do_not_go_together_are_refused(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        Recipe.model_validate({"sources": {"toy": {"source": "toy"}}, "vocab": options})
