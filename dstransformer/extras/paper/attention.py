"""``dst attention``: the attention of a model for one sentence, drawn as in Figures 3 to 5 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dstransformer.config import ModelConfig
from dstransformer.data import BOS_ID, EOS_ID, Tokenizer
from dstransformer.decoding import Translator
from dstransformer.errors import DataError, UserError, counted, shown
from dstransformer.extras.paper.attention_pictures import (
    Sentence,
    View,
    Weights,
    draw_lines,
    draw_maps,
    merge_weights,
    render_page,
    warn_of_missing_letters,
)
from dstransformer.io.files import replace_folder, write_durably
from dstransformer.io.products import check_output_folder
from dstransformer.model import Bundle, attention_weights

KINDS = ("encoder", "decoder", "cross")

PAGE, WEIGHTS = "attention.html", "attention.npz"

#: Every file that a folder of pictures may hold.
FILES = (
    PAGE,
    WEIGHTS,
    *(f"{kind}-{style}.{end}" for kind in KINDS for style in ("lines", "maps") for end in ("svg", "png")),
)

#: The maximum length of a sentence. The page holds the weights of all layers and heads, so its size grows with the
#: square of the length.
MAX_PIECES = 256


@dataclass(frozen=True)
class Selection:
    """What to draw.

    Attributes:
        layer: The layer, from 1; None for the last.
        heads: The heads, from 1; empty for all.
        words: Words whose lines are drawn; empty for all.
        kinds: The kinds of attention to draw, of :data:`KINDS`.
        whole_words: Whether to merge the pieces of a word.
    """

    layer: int | None = None
    heads: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    kinds: tuple[str, ...] = KINDS
    whole_words: bool = False


class Drawing(NamedTuple):
    """What was drawn: the pair, which layer in words, the heads, the pictures, and the kinds without lines."""

    source: str
    target: str
    layer: str
    heads: tuple[int, ...]
    pictures: int
    without_lines: tuple[str, ...]


class SentencePair(NamedTuple):
    """A sentence pair as the model sees it: the source with EOS, the decoder's input and the pieces it predicts."""

    src: Sentence
    tgt_in: Sentence
    tgt_out: Sentence

    def sides(self, kind: str) -> tuple[Sentence, Sentence]:
        """The sentences of queries and keys.

        A query of the decoder has the name of the word that it predicts, a key of the word that it reads.
        """
        return {
            "encoder": (self.src, self.src),
            "decoder": (self.tgt_out, self.tgt_in),
            "cross": (self.tgt_out, self.src),
        }[kind]


def draw_attention(
    bundle: Bundle,
    load: Callable[[], Translator],
    sentence: str,
    out: Path,
    selection: Selection,
    *,
    target: str | None = None,
    overwrite: bool = False,
) -> Drawing:
    """Draw the attention of a model for a sentence: pictures, a page and the weights, in a folder.

    Args:
        bundle: The model's bundle.
        load: Loads the translator of the bundle; called after the arguments have been checked.
        sentence: The source.
        out: The folder, written atomically.
        selection: What to draw.
        target: The target to force the decoder to; None for the model's own translation.
        overwrite: Replace an earlier folder of pictures.

    Raises:
        DataError: The bundle is a parser, the layer, a head or a word does not exist, a sentence is empty or too long,
            or ``out`` cannot be replaced.
        StorageError: The folder cannot be written.
    """
    bundle.check_translates(f"the attention of a translation model can be drawn, not that of {bundle.form.model}")
    check_output_folder(out, "--out", "a folder of attention pictures", _is_result, FILES, overwrite=overwrite)
    layer, heads = _check_selection(selection, bundle.model)
    src = _encode(bundle.tokenizer.src, sentence, "the sentence")
    tgt = None if target is None else _encode(bundle.tokenizer, target, "--target")
    translator = load()
    _check_length(src, "the sentence", translator, max_input=translator.settings.max_input_tokens)
    if tgt is None and not (tgt := translator.translate_ids([src])[0]):
        raise DataError("the model translates the sentence to nothing: name a translation with --target")
    _check_length(tgt, "the translation" if target is None else "--target", translator)
    pair, weights = read_weights(translator, src, tgt)
    views = {kind: _view(kind, pair, weights[kind], selection) for kind in KINDS}
    drawn = [views[kind] for kind in KINDS if kind in selection.kinds]
    _check_words(pair, selection)
    tokenizer = translator.tokenizer
    (source,), (translation,) = tokenizer.src.decode([src]), tokenizer.decode([tgt])
    files: dict[str, bytes | str] = _draw(drawn, layer, heads)
    pictures = len(files)
    files[PAGE] = render_page(
        list(views.values()),
        {"source": source, "target": translation, "model": str(bundle.path)},
        kind=selection.kinds[0], layer=layer or len(weights[selection.kinds[0]]), heads=heads,
        whole_words=selection.whole_words,
    )  # fmt: skip
    replace_folder(
        out,
        lambda folder: _write(folder, files, pair, weights),
        overwrite=overwrite,
        full="make room, or choose another folder",
    )
    empty = tuple(view.kind for view in drawn if view.chosen == ())
    return Drawing(source, translation, _describe_layer(layer, selection, bundle.model), heads, pictures, empty)


def read_weights(
    translator: Translator, src: Sequence[int], tgt: Sequence[int]
) -> tuple[SentencePair, dict[str, Weights]]:
    """The weights of a sentence pair between its pieces, ``(layers, heads, queries, keys)`` fp32 by kind.

    Args:
        translator: The model and its tokenizer.
        src: The IDs of the source, without BOS and EOS.
        tgt: The IDs of the target, without BOS and EOS.

    Raises:
        DataError: A weight is NaN.
    """
    rows = ([*src, EOS_ID], [BOS_ID, *tgt], [*tgt, EOS_ID])
    weight = translator.model.softmax_weight
    tensors = [torch.tensor(ids, device=weight.device) for ids in rows[:2]]
    found = attention_weights(translator.model, *tensors)
    weights: dict[str, Weights] = {kind: part.cpu().numpy() for kind, part in zip(KINDS, found, strict=True)}
    if not all(np.isfinite(part).all() for part in weights.values()):
        precision = str(weight.dtype).removeprefix("torch.")
        raise DataError(
            f"the model's attention has NaN for this sentence in {precision}; try another --precision; if that does "
            "not help, the weights are damaged"
        )
    sides = [Sentence.from_ids(translator.tokenizer, ids) for ids in rows[1:]]
    return SentencePair(Sentence.from_ids(translator.tokenizer.src, rows[0]), *sides), weights


def _is_result(folder: Path) -> bool:
    return all((folder / name).is_file() for name in (PAGE, WEIGHTS))


def _depth(selection: Selection, model: ModelConfig) -> int:
    """The number of layers of which all chosen kinds have attention."""
    return min(model.encoder_depth if kind == "encoder" else model.decoder_depth for kind in selection.kinds)


def _describe_layer(layer: int | None, selection: Selection, model: ModelConfig) -> str:
    depth = _depth(selection, model)
    if layer is None and {"encoder"} < set(selection.kinds) and model.encoder_depth != model.decoder_depth:
        return f"the last layer of each side ({model.encoder_depth} + {model.decoder_depth})"
    return f"layer {layer or depth} of {depth}"


def _check_selection(selection: Selection, model: ModelConfig) -> tuple[int | None, tuple[int, ...]]:
    """The layer, None for the last of each kind, and the heads, checked against the model."""
    layers, count = _depth(selection, model), model.num_heads
    layer = selection.layer
    if layer is not None and not 1 <= layer <= layers:
        side = other = ""
        if model.encoder_depth != model.decoder_depth:
            side = f" in its {'encoder' if layers == model.encoder_depth else 'decoder'}"
        if "encoder" in selection.kinds and model.encoder_depth > model.decoder_depth:
            other = f", or --kind encoder for its {model.encoder_depth}"
        raise DataError(
            f"--layer {layer}: the model has {counted(layers, 'layer')}{side}, numbered from 1: give "
            f"{_range(layers)}{other}"
        )
    if missing := [head for head in selection.heads if not 1 <= head <= count]:
        raise DataError(
            f"--heads {missing[0]}: the model has {counted(count, 'head')} in each layer, numbered from 1: give "
            f"{_range(count)}"
        )
    return layer, tuple(dict.fromkeys(selection.heads)) or tuple(range(1, count + 1))


def _range(last: int) -> str:
    return "1" if last == 1 else f"1 to {last}"


def _encode(tokenizer: Tokenizer, text: str, name: str) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{name} is not UTF-8 text: {shown(text)}; check the terminal's encoding") from None
    ids = tokenizer.encode([text])[0]
    if not ids:
        raise DataError(f"{name} is empty ({shown(text)}): give at least one word")
    return ids


def _check_length(ids: Sequence[int], name: str, translator: Translator, *, max_input: int = 0) -> None:
    """Check that the model and the pictures can hold the pieces. A ``max_input`` of 0 is no limit."""
    config = translator.model.config
    limits = [(MAX_PIECES, "a picture holds", "split it")]
    if config.positions == "learned":
        limits.append((config.max_positions - 1, "the model has positions (model.max_positions) for", "split it"))
    if max_input:
        limits.append((max_input, "the bundle takes", "split it, or raise --max-input-tokens"))
    max_pieces, what, advice = min(limits)
    if len(ids) > max_pieces:
        raise DataError(f"{name} has {counted(len(ids), 'piece')}, but {what} at most {max_pieces:,}: {advice}")


def _view(kind: str, pair: SentencePair, weights: Weights, selection: Selection) -> View:
    """A kind of attention; if it is drawn, with the lines of the named words only."""
    queries, keys = pair.sides(kind)
    chosen = None
    if selection.words and kind in selection.kinds:
        pieces = {piece for name in selection.words for piece in queries.find(name)}
        chosen = tuple(sorted({int(queries.word_of[i]) for i in pieces} if selection.whole_words else pieces))
    if selection.whole_words:
        return View(kind, queries.words, keys.words, merge_weights(weights, queries, keys), chosen)
    return View(kind, queries.pieces, keys.pieces, weights, chosen)


def _check_words(pair: SentencePair, selection: Selection) -> None:
    """Check that each selected word is in a sentence whose lines are drawn."""
    sentences: Mapping[str, Sentence] = {
        "target" if kind != "encoder" else "source": pair.sides(kind)[0] for kind in selection.kinds
    }
    for name in selection.words:
        if not any(sentence.find(name) for sentence in sentences.values()):
            words = "; ".join(f"the {side}'s: {' '.join(sentence.words)}" for side, sentence in sentences.items())
            raise DataError(f"--words {shown(name)}: no such word; give one of {shown(words, quote=False, limit=600)}")


def _draw(views: Sequence[View], layer: int | None, heads: Sequence[int]) -> dict[str, bytes | str]:
    """The pictures by file name. A kind without any of the named words gets maps only."""
    warn_of_missing_letters(views)
    files: dict[str, bytes | str] = {}
    for view in views:
        styles = {"maps": draw_maps} if view.chosen == () else {"lines": draw_lines, "maps": draw_maps}
        for style, draw in styles.items():
            images = draw(view, layer or len(view.weights), heads)
            files |= {f"{view.kind}-{style}.{end}": image for end, image in images.items()}
    return files


def _write(folder: Path, files: Mapping[str, bytes | str], pair: SentencePair, weights: Mapping[str, Weights]) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        write_durably(folder / name, content)
    arrays: dict[str, npt.NDArray[Any]] = dict(weights)
    for kind, part in weights.items():
        arrays[f"{kind}_words"] = merge_weights(part, *pair.sides(kind))
    for name, sentence in pair._asdict().items():
        arrays[f"{name}_pieces"] = np.array(sentence.pieces)
        arrays[f"{name}_words"] = np.array(sentence.words)
        arrays[f"{name}_word_of"] = sentence.word_of
    np.savez(folder / WEIGHTS, allow_pickle=False, **arrays)
