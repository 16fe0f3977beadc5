"""Stage three: one SentencePiece vocabulary for both languages (Vaswani et al., 2017, section 5.1), or one for each."""

import io
import itertools
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as formats

from data_prep.recipe.options import CleanOptions, NormalForm, VocabOptions
from data_prep.stages.clean import Clean
from data_prep.stages.read import Read, text_format
from data_prep.stages.text import TextFormat, normalise
from data_prep.store.chunks import Report
from data_prep.store.pairs import count_pairs, iter_pairs
from data_prep.store.workspace import StageFiles, StoredStage, Workspace
from data_prep.workers import Workers, run_in_process
from dstransformer.data import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer, TokenizerInfo
from dstransformer.data.tokenizer import SRC_TOKENIZER_NAME, TARGET_RULE, TOKENIZER_NAME
from dstransformer.errors import DataError, UserError
from dstransformer.io.files import file_sha256
from dstransformer.io.progress import Progress

# Unigram training sums floats per thread, so the number of threads decides the last bits, and the model file records
# it. With a fixed number every machine trains the same model.
_THREADS = 16

#: How SentencePiece writes a space. A tag follows the one that it puts before every sentence.
SPACE = "\u2581"

#: The Unicode forms of the source and of the target side.
Forms = tuple[NormalForm, NormalForm]

#: The special pieces, those of bytes and of the space; and the text that a further piece needs, so that a model meets
#: it often enough to learn it: Multi30k's 3.6 million characters have 10,000 pieces.
_BASE_PIECES, _CHARACTERS_OF_PIECE = 4 + 256 + 1, 360

#: The sides of the text that a vocabulary is for.
Side = Literal["both", "src", "tgt"]

_COLUMNS = {"both": ("src", "tgt"), "src": ("src",), "tgt": ("tgt",)}
_NAMES = {"both": "", "src": " of the source side", "tgt": " of the target side"}


class Tokenizers(Report):
    """The tokenizer of both sides; or that of the target side, and that of the source side."""

    tokenizer: TokenizerInfo
    src_tokenizer: TokenizerInfo | None = None


@dataclass(frozen=True)
class Vocab(StoredStage[Tokenizers]):
    """Trains the tokenizers on the cleaned training text, or takes given ones."""

    name = "vocab"
    files = StageFiles(results=(TOKENIZER_NAME, SRC_TOKENIZER_NAME))
    report_type = Tokenizers

    options: VocabOptions
    after: str

    def content(self) -> dict[str, Any]:
        """See ``Stage``."""
        content: dict[str, Any] = dict(self.record())
        if self.options.tokenizer_model:
            src = self.options.src_tokenizer_model
            tokenizer = Tokenizer.load(self.options.tokenizer_model, Tokenizer.load(src) if src else None)
            content["sha256"] = tokenizer.identity
        return content

    def check(self, work: Workspace) -> None:
        """See ``StoredStage``."""
        work.chain(Read, Clean)
        work.verify(Clean)
        check_symbols(self.options.symbols, _forms(work))

    def write(self, work: Workspace, folder: Path, workers: Workers) -> Tokenizers:
        """See ``StoredStage``. SentencePiece uses its own threads."""
        del workers
        train, text = work.folder / Clean.name / "train.arrow", text_format(work)
        details = self.options, _forms(work), text, work.progress
        if self.options.joint:
            return Tokenizers(tokenizer=make_tokenizer(train, folder / TOKENIZER_NAME, *details))
        if text.trees:
            raise UserError("--no-joint: a corpus for a parser has one vocabulary, for words and trees: leave it out")
        return Tokenizers(
            src_tokenizer=make_tokenizer(train, folder / SRC_TOKENIZER_NAME, *details, side="src"),
            tokenizer=make_tokenizer(train, folder / TOKENIZER_NAME, *details, side="tgt"),
        )


def _forms(work: Workspace) -> Forms:
    options = CleanOptions.model_validate(work.finished(Clean).options)
    return options.normalise, options.normalise_target


def open_tokenizer(work: Workspace) -> Tokenizer:
    """Load the tokenizer of a finished stage.

    Raises:
        DataError: The file of a tokenizer is damaged or gone.
    """
    infos = work.report(Vocab)
    for name, info in ((SRC_TOKENIZER_NAME, infos.src_tokenizer), (TOKENIZER_NAME, infos.tokenizer)):
        path = work.folder / Vocab.name / name
        if info is not None and (not path.is_file() or file_sha256(path) != info.sha256):
            raise DataError(
                f"{path} is damaged or gone: remove {path.parent}, then run `dst-prep vocab` or `dst-prep build` again"
            )
    return load_tokenizer(work.folder / Vocab.name)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer, with the one of the source side if there is one, that a stage left in a folder.

    Raises:
        DataError: The file of a tokenizer is damaged or gone.
    """
    src = folder / SRC_TOKENIZER_NAME
    return Tokenizer.load(folder / TOKENIZER_NAME, Tokenizer.load(src) if src.exists() else None)


def make_tokenizer(
    train: Path,
    target: Path,
    options: VocabOptions,
    forms: Forms,
    text: TextFormat,
    progress: Progress,
    side: Side = "both",
) -> TokenizerInfo:
    """Train a tokenizer on a file of pairs, or take the given one, and save it as ``target``.

    It has a piece for every tag and for every symbol of the user's. For trees it is trained on the words only, and has
    a piece for every symbol that they are written with.

    Args:
        train: A file of pairs, cleaned.
        target: Where the model goes.
        options: Kind, size, sample and symbols.
        forms: The Unicode forms that the model normalises text to.
        text: How sentences are written.
        progress: Shows that training is under way.
        side: The sides of the text that it is for.

    Raises:
        UserError: The text cannot fill the vocabulary, or does not fit into it.
        DataError: The given model cannot be used.
    """
    targets = (one for batch in iter_pairs(train) for one in batch["tgt"].to_pylist())
    of_trees = sorted(text.form.symbols(targets))
    if clash := set(of_trees) & set(options.symbols):
        raise UserError(f"--symbols {min(clash)}: the trees are written with this symbol; leave it out")
    tags = [f"{SPACE}{tag}" for tag in sorted({tag for tag in text.tags if tag and side != "tgt"})]
    for symbol in _unseen(train, options.symbols) if side != "tgt" else ():
        progress.note(f"warning: the symbol {symbol!r} is nowhere in the training text: no model can learn it")
    if given := options.src_tokenizer_model if side == "src" else options.tokenizer_model:
        tokenizer = Tokenizer.load(given)
        option = f"--{'src-' if side == 'src' else ''}tokenizer-model {given}"
        _check_given(tokenizer, option, of_trees, tags, options.symbols)
        kind = "given"
    else:
        symbols = [*of_trees, *tags, *options.symbols]
        read: Side = "src" if text.trees else side
        title = f"train a {options.tokenizer} vocabulary of {options.vocab_size:,}{_NAMES[side]}"
        with progress.task(title) as advance:
            lines = count_pairs(train) * len(_COLUMNS[read])
            model = run_in_process(partial(_train, train, lines, options, symbols, read))
            tokenizer = Tokenizer(with_rules(model, {"src": forms[:1], "tgt": forms[1:]}.get(side, forms)))
            advance(min(lines, options.tokenizer_sample))
        kind = options.tokenizer
    tokenizer.save(target)
    return TokenizerInfo(kind=kind, vocab_size=tokenizer.vocab_size, sha256=tokenizer.sha256)


def check_symbols(symbols: Sequence[str], forms: Forms) -> None:
    """Check that cleaning to the forms of both sides leaves the user's symbols as they are.

    Raises:
        UserError: Cleaning would change a symbol.
    """
    for symbol, form in itertools.product(symbols, forms):
        if (cleaned := normalise(symbol, form)) != symbol:
            raise UserError(
                f"--symbols {symbol}: cleaning normalises the text ({form.upper()}), and writes {cleaned!r}: choose "
                "another symbol, or --normalise none --normalise-target none"
            )


def with_rules(model: bytes, forms: Sequence[NormalForm]) -> bytes:
    """A SentencePiece model that normalises text to a form; with a second, other form the text of the target side.

    The rules become part of the model, so that other programs apply the first to what a model reads.
    """
    proto = formats.ModelProto.FromString(model)
    proto.normalizer_spec.MergeFrom(_rule(forms[0]))
    if forms[0] != forms[-1]:
        rule = _rule(forms[-1])
        rule.name = f"{TARGET_RULE}{rule.name}"
        # The flags are on by default, and would change the spaces of decoded text.
        rule.add_dummy_prefix = rule.remove_extra_whitespaces = rule.escape_whitespaces = False
        proto.denormalizer_spec.CopyFrom(rule)
    return bytes(proto.SerializeToString())


def _rule(form: NormalForm) -> Any:
    """SentencePiece's rule for a Unicode form, of which it lacks NFC, as a ``NormalizerSpec``."""
    if form == "none":
        return formats.NormalizerSpec(name="identity")
    sentencepiece.set_min_log_level(2)  # it tells of its progress on standard error
    rule = {"norm_map": sorted(_nfc().items())} if form == "nfc" else {"rule_name": form}
    spec = formats.NormalizerSpec.FromString(sentencepiece.SentencePieceNormalizer(**rule).serialized_normalizer_spec())
    return formats.NormalizerSpec(name=form, precompiled_charsmap=spec.precompiled_charsmap)


@cache
def _nfc() -> dict[str, str]:
    """Every way to write a character of form NFC by its parts, in any order; and every space as a space."""
    composed = {}
    for character in map(chr, range(sys.maxunicode + 1)):
        if character.isspace() and character != " ":
            composed[character] = " "
            continue
        parts = unicodedata.normalize("NFD", character)
        if character == parts:
            continue
        base, marks, result = parts[0], parts[1:], unicodedata.normalize("NFC", character)
        for order in itertools.permutations(marks):
            for end in range(len(order) + 1):
                written = unicodedata.normalize("NFC", "".join([base, *order[:end]])) + "".join(order[end:])
                if unicodedata.normalize("NFC", written) == result:
                    composed[written] = result
        composed[character] = result
    return {written: result for written, result in composed.items() if written != result}


def _check_given(
    tokenizer: Tokenizer, option: str, of_trees: Sequence[str], tags: Sequence[str], own: Sequence[str]
) -> None:
    """Refuse the model that an option names if it lacks a symbol that the corpus needs."""
    for symbols, purpose, source in (
        (of_trees, ", with which these trees are written", "the tokenizer of a corpus of such trees"),
        (tags, " for that tag", "the tokenizer of a corpus with that tag"),
        (own, " that stays whole, as --symbols asks", "one that was trained with this symbol"),
    ):
        if missing := [symbol for symbol in symbols if symbol not in tokenizer.symbols]:
            raise DataError(f"{option} has no piece {missing[0]!r}{purpose}: take {source}, or train one")


def _unseen(train: Path, symbols: Sequence[str]) -> Sequence[str]:
    """The symbols that are on neither side of the training text."""
    for batch in iter_pairs(train) if symbols else ():
        texts = [batch["src"], batch["tgt"]]
        symbols = [one for one in symbols if not any(pc.any(pc.match_substring(text, one)).as_py() for text in texts)]
        if not symbols:
            break
    return symbols


def _sample_lines(train: Path, lines: int, options: VocabOptions, side: Side = "both") -> Iterator[str]:
    """Iterate over a random sample of ``options.tokenizer_sample`` sentences of both sides or one, in their order.

    Each batch gives its share of the sample, so that memory holds a batch. A sentence is as likely to be chosen as any
    other, but for what rounding leaves to a batch.
    """
    size = min(options.tokenizer_sample, lines)
    rng = np.random.default_rng(options.tokenizer_seed)
    end = 0
    for batch in iter_pairs(train):
        sides = [batch[column].to_pylist() for column in _COLUMNS[side]]
        sentences = [sentence for pair in zip(*sides, strict=True) for sentence in pair]
        begin, end = end, end + len(sentences)
        share = end * size // lines - begin * size // lines
        if share == len(sentences):
            yield from sentences
        else:
            chosen = rng.choice(len(sentences), share, replace=False, shuffle=False)
            yield from (sentences[number] for number in np.sort(chosen).tolist())


def _train(train: Path, lines: int, options: VocabOptions, symbols: list[str], side: Side) -> bytes:
    sentences = _sample_lines(train, lines, options, side)
    # SentencePiece keeps its whole input in memory. BPE depends on word counts only, so these give the same pieces;
    # unigram finds its first candidates in running text.
    words_only = options.tokenizer == "bpe"
    if words_only:
        counts = Counter(itertools.chain.from_iterable(sentence.split(" ") for sentence in sentences))
        sentences = (f"{word}\t{count}" for word, count in counts.items())
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences,
            input_format="tsv" if words_only else "text",
            model_writer=model,
            model_type=options.tokenizer,
            vocab_size=options.vocab_size,
            character_coverage=options.character_coverage,
            normalization_rule_name="identity",  # cleaned text has the form of its side; see `with_rules`
            byte_fallback=True,
            user_defined_symbols=symbols,
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            num_threads=_THREADS,
            train_extremely_large_corpus=options.tokenizer_sample > 10_000_000,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _explain(str(error), train, options, len(symbols), side) from None
    return model.getvalue()


def _explain(message: str, train: Path, options: VocabOptions, symbols: int, side: Side) -> UserError:
    text = "this text" if options.joint else f"the {'source' if side == 'src' else 'target'} text"
    if match := re.search(r"too high .* <= (\d+)", message):
        sides: tuple[Side, ...] = (side,) if options.joint else ("src", "tgt")  # which have the same size
        size = min(max(_fitting_size(train, options, one) for one in sides) + symbols, int(match[1]))
        return UserError(
            f"--vocab-size {options.vocab_size} is more than {text} can fill: give about {size}, or more text "
            f"(--tokenizer-sample reads {options.tokenizer_sample:,} sentences of it at most)"
        )
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return UserError(
            f"--vocab-size {options.vocab_size} has no room for the special pieces, 256 bytes and {text}'s characters: "
            f"give at least {match[1]}, or a lower --character-coverage"
        )
    return DataError(f"SentencePiece cannot train on {text}: {message}")


def _fitting_size(train: Path, options: VocabOptions, side: Side) -> int:
    """About how many pieces a text has occurrences for."""
    sentences = _sample_lines(train, count_pairs(train) * len(_COLUMNS[side]), options, side)
    counts = Counter(character for sentence in sentences for character in sentence)
    return _BASE_PIECES + len(counts) + counts.total() // _CHARACTERS_OF_PIECE
