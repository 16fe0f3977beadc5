from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from support.data.corpora import TEXT, small_tokenizer
from support.models.packed import pack

from dstransformer.config import Config
from dstransformer.data import EOS_ID
from dstransformer.data.packing import Packing
from dstransformer.decoding import Output, Sampling, TorchEngine, Translator, beam_search
from dstransformer.decoding import engine as engine_module
from dstransformer.decoding.devices import choose_device, memory_errors
from dstransformer.errors import ConfigError, DataError, DstError
from dstransformer.model import Ensemble, Transformer

SENTENCES = [TEXT[0], "", "dog", *TEXT[1:], "   ", "The lazy dog jumps.", "fox fox fox"]


def texts(found: Iterable[tuple[str, list[Output]]]) -> list[str]:
    return [outputs[0].text for _, outputs in found]


def test_order_is_restored_and_empty_lines_stay_empty(translator: Translator) -> None:
    together = translator.translate(SENTENCES)
    assert together == [translator.translate([sentence])[0] for sentence in SENTENCES]
    assert [place for place, text in enumerate(together) if not text] == [1, 6]
    assert len(set(together)) == len(SENTENCES) - 1, "the test needs a different output for every source"


def test_settings_from_python_are_checked(translator: Translator, bundle: Path) -> None:
    with pytest.raises(ConfigError, match=r"n_best is 1\.5"):
        translator.search(["dog"], n_best=1.5)  # type: ignore[arg-type]
    wrong: list[tuple[Any, str]] = [
        ({"beam_size": 2}, r"settings is {'beam_size': 2}: give a DecodingConfig, such as "),
        (
            translator.settings.model_copy(update={"beam_size": 0}),
            "settings: decoding.beam_size = 0: must be 1 or more",
        ),
    ]
    for settings, complaint in wrong:
        with pytest.raises(ConfigError, match=complaint):
            Translator.load(bundle, settings=settings)


@pytest.mark.parametrize(("given", "complaint"), [
    ("a dog", r"sentences is the string 'a dog': give a list of strings, \['a dog'\]"),
    (["a dog", None], "number 2 of sentences is None, which is not text: give strings"),
    (["\udcff"], r"number 1 of sentences is '\\udcff', which is not text"),
])  # fmt: skip
def test_what_is_no_list_of_strings_is_refused(translator: Translator, given: Any, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        translator.translate(given)


def test_ids_are_those_of_the_best_hypothesis(translator: Translator) -> None:
    src = small_tokenizer().encode(TEXT)
    packed = pack([torch.tensor([*ids, EOS_ID]) for ids in src])
    vocab_size = small_tokenizer().vocab_size
    found = beam_search(Ensemble([translator.model]), *packed, translator.settings, vocab_size=vocab_size)
    assert translator.translate_ids(src) == [row[0].tokens for row in found]
    assert translator.translate_ids([]) == []
    assert translator.translate_ids([[], []]) == [[], []]


def test_progress_counts_every_sentence(translator: Translator) -> None:
    counts: list[int] = []
    translator.translate(SENTENCES, counts.append)
    assert sum(counts) == len(SENTENCES)
    assert len(counts) > 2, "at 40 tokens per batch there are several"


def test_streams_are_translated_as_they_arrive(translator: Translator) -> None:
    assert texts(translator.iter_search(iter(SENTENCES), buffer_lines=2)) == translator.translate(SENTENCES)
    taken = count()

    def endless() -> Iterator[str]:
        for _ in taken:
            yield "dog"

    assert texts(islice(translator.iter_search(endless(), buffer_lines=3), 2)) == translator.translate(["dog"]) * 2
    assert next(taken) == 3, "no more is read than the buffer holds"


def test_a_pause_in_a_stream_translates_what_has_arrived(translator: Translator) -> None:
    taken = []

    def pausing() -> Iterator[str | None]:
        for line in ("dog", "fox", None, None, "", None, "dog"):
            taken.append(line)
            yield line

    dog, fox = translator.translate(["dog", "fox"])
    stream = translator.iter_search(pausing())
    assert texts(islice(stream, 2)) == [dog, fox]
    assert taken == ["dog", "fox", None]
    assert texts(stream) == ["", dog]


def test_too_long_sentences_are_cut_with_a_warning(translator: Translator, caplog: pytest.LogCaptureFixture) -> None:
    translator.settings = translator.settings.model_copy(update={"max_input_tokens": 3})
    lines = ["dog", "dog " * 60_000, "fox", "fox " * 9]
    cut = texts(translator.iter_search(lines, buffer_lines=4))
    assert (
        "sentence 2 has 180,000 tokens: only its first 3 are translated (--max-input-tokens, decoding.max_i"
        in caplog.text
    )
    assert "as with 1 more; divide it, or let --long split (decoding.long_inputs) do so" in caplog.text
    ids = translator.tokenizer.encode(lines)
    assert cut == translator.tokenizer.decode(translator.translate_ids([row[:3] for row in ids]))
    caplog.clear()
    translator.settings = translator.settings.model_copy(update={"max_input_tokens": 0})
    translator.translate(["fox " * 9])
    assert not caplog.records


def test_a_search_that_does_not_fit_in_memory_is_refused(translator: Translator) -> None:
    translator.settings = translator.settings.model_copy(update={"beam_size": 1000, "max_extra_tokens": 10**9})
    with pytest.raises(DataError, match=r"sentence 3: .*1000 .*[\d,.]+ GiB, .*--beam"):
        translator.translate(["", "dog", "dog dog"])


def test_samples_that_do_not_fit_in_memory_are_refused_whatever_the_beam(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = (len(translator.tokenizer.encode(["dog"])[0]) + 1 + 6) * Ensemble([translator.model]).bytes_per_token
    monkeypatch.setattr("dstransformer.decoding.engine.free_memory", lambda _: 10 * needed)
    wide = translator.settings.model_copy(update={"beam_size": 500})
    message = "sentence 1: 11 samples and up to .* lower --n-best, --max-input-tokens or --max-extra-tokens$"
    with pytest.raises(DataError, match=message):
        translator.search(["dog"], n_best=11, sampling=Sampling())
    translator.settings = wide
    assert len(translator.search(["dog"], n_best=10, sampling=Sampling())[0]) == 10
    with pytest.raises(DataError, match=r"500 .*--beam"):
        translator.search(["dog"])


@pytest.mark.parametrize("sampling", [None, Sampling()])
def test_a_long_prefix_counts_for_the_memory(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, sampling: Sampling | None
) -> None:
    monkeypatch.setattr(
        "dstransformer.decoding.engine.free_memory", lambda _: 4 * 40 * Ensemble([translator.model]).bytes_per_token
    )
    assert translator.search(["dog", "fox"], prefixes=["", "dog"], n_best=4, sampling=sampling)
    with pytest.raises(DataError, match=r"sentence 2: .*prefix"):
        translator.search(["dog fox", "fox", ""], prefixes=["", "dog " * 40, "dog " * 60], n_best=4, sampling=sampling)


def test_a_wide_beam_takes_fewer_sentences_at_once(translator: Translator) -> None:
    batches: list[int] = []
    translator.settings = translator.settings.model_copy(update={"beam_size": 16})
    translator.translate(["dog"] * 40, batches.append)
    assert set(batches) == {5}, "half of the 40 tokens of a batch, at four tokens each"


def test_describe_gives_settings_device_and_precision(translator: Translator) -> None:
    described = translator.describe()
    assert described["beam_size"] == translator.settings.beam_size
    assert (described["device"], described["precision"]) == ("cpu", None)


def test_a_model_in_training_mode_stays_trainable(translator: Translator) -> None:
    model = translator.model.train()
    model.config = model.config.model_copy(update={"dropout": 0.5})
    src, packing = pack([torch.tensor([5, 6, EOS_ID])])
    assert translator.translate(["dog"]) == translator.translate(["dog"])
    assert model.training
    assert model.decoder[0].feed_forward_residual.norm.training
    model(src, packing, src, packing).sum().backward()
    assert model.embedding.weight.grad is not None


def test_a_translation_is_one_line(model: Transformer, config: Config) -> None:
    tokenizer = small_tokenizer()
    (line_feed,) = [token for token in range(4, tokenizer.vocab_size) if tokenizer.decode([[token]]) == ["\n"]]
    with torch.no_grad():
        model.decoder[-1].feed_forward_residual.norm.bias.fill_(2.0)
        model.softmax.weight[line_feed] = 3.0
    translator = Translator(TorchEngine([model], tokenizer.vocab_size), tokenizer, config.decoding)
    assert line_feed in translator.translate_ids([[5]])[0]
    assert "\n" not in translator.translate(["dog"])[0]


def test_a_broken_model_gives_empty_translations_and_a_warning(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    assert translator.translate(["dog", ""])[1] == ""
    assert not caplog.records
    with torch.no_grad():
        translator.model.softmax.weight.fill_(float("nan"))
    assert translator.translate(["", "dog", "fox"]) == ["", "", ""]
    assert "2 of 3 sentences have no output; the first is sentence 2" in caplog.text
    assert "the model computes NaN for them in float64; try another --precision" in caplog.text


def test_a_loaded_bundle_translates_like_the_saved_model(bundle: Path, model: Transformer, config: Config) -> None:
    loaded = Translator.load(bundle, device="cpu", dtype=torch.float32)
    assert loaded.settings == config.decoding
    engine = TorchEngine([model], small_tokenizer().vocab_size)
    assert loaded.translate(TEXT) == Translator(engine, small_tokenizer(), config.decoding).translate(TEXT)
    greedy = config.decoding.model_copy(update={"beam_size": 1})
    assert Translator.load(bundle, settings=greedy).settings.beam_size == 1
    assert Translator.load(bundle, device="cpu", dtype=torch.bfloat16).model.embedding.weight.dtype == torch.bfloat16


@pytest.fixture
def learned(model: Transformer, config: Config) -> Translator:
    """A translator with learned positions for seven tokens and their end."""
    changed = model.config.model_copy(update={"positions": "learned", "max_positions": 8})
    vocab_size = small_tokenizer().vocab_size
    engine = TorchEngine([Transformer(changed, vocab_size)], vocab_size)
    return Translator(engine, small_tokenizer(), config.decoding)


@pytest.mark.parametrize("tokens", [8, 30, 2000])  # below and beyond the limit of the settings
def test_a_sentence_beyond_the_learned_positions_is_cut(
    learned: Translator, tokens: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert learned.translate_ids([[5], [5] * tokens])[1] == learned.translate_ids([[5] * 7])[0]
    assert f"sentence 2 has {tokens:,} tokens: only its first 7 are translated" in caplog.text
    learned.settings = learned.settings.model_copy(update={"long_inputs": "refuse"})
    assert learned.translate_ids([[5] * tokens]) == [[]]


def test_a_line_beyond_the_learned_positions_is_split(learned: Translator) -> None:
    sentences = ["A dog.", "A fox.", "A dog."]
    assert all(len(ids) <= 7 for ids in learned.tokenizer.encode(sentences))
    learned.settings = learned.settings.model_copy(update={"long_inputs": "split"})
    assert learned.translate([" ".join(sentences)]) == [" ".join(filter(None, learned.translate(sentences)))]


def test_a_sentence_beyond_the_learned_positions_is_refused_if_nothing_limits_it(
    learned: Translator,
) -> None:
    translator = learned
    translator.settings = translator.settings.model_copy(update={"max_input_tokens": 0})
    assert len(translator.translate_ids([[5] * 7])[0]) <= 7
    with pytest.raises(DataError, match=r"sentence 2 .*9 .*8"):
        translator.translate_ids([[5], [5] * 8])
    with pytest.raises(DataError, match="sentence 4 "):
        list(translator.iter_search(["fox", "dog", "", TEXT[0]], buffer_lines=3))


@pytest.mark.parametrize("device", ["toaster", "tpu", "cpu:3", "cuda:77", "meta", "mps"])
def test_unavailable_devices_are_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{device}'[^\n]*$"):
        choose_device(device)


@pytest.mark.parametrize("error", [
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
])  # fmt: skip
def test_running_out_of_memory_is_reported_with_advice(error: Exception) -> None:
    def exhaust() -> None:
        with memory_errors():
            raise error

    with pytest.raises(DstError, match=r"--batch-tokens .*--beam"):
        exhaust()
    with pytest.raises(RuntimeError, match="something else"), memory_errors():
        raise RuntimeError("something else")


def test_batches_that_do_not_fit_in_memory_change_no_translation(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = translator.translate(SENTENCES)

    def small_memory(models: Ensemble, src: torch.Tensor, packing: Packing, *args: Any, **kwargs: Any) -> Any:
        if packing.sentences > 1:
            torch.empty(1 << 60)
        return beam_search(models, src, packing, *args, **kwargs)

    monkeypatch.setattr(engine_module, "beam_search", small_memory)
    assert translator.translate(SENTENCES) == expected
