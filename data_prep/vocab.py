"""Stage three: one SentencePiece vocabulary for both languages (Vaswani et al., 2017, section 5.1)."""

import io
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import sentencepiece

from data_prep.options import VocabOptions
from data_prep.pairs import count_pairs, iter_pairs
from data_prep.progress import Progress
from data_prep.workers import run_in_process
from dstransformer.corpus import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer, TokenizerInfo
from dstransformer.errors import DataError, UserError

# Unigram sums floats a thread, so the number of threads decides the last bits, and the model file records it:
# with a fixed number every machine makes the same model.
_THREADS = 16


def make_tokenizer(train: Path, target: Path, options: VocabOptions, rule: str, progress: Progress) -> TokenizerInfo:
    """Train a tokenizer on a file of pairs, or take the one given, and save it as ``target``.

    Args:
        train: a file of pairs, cleaned.
        target: where the model goes.
        options: kind, size and sample.
        rule: SentencePiece's name of the Unicode normalisation that the model is to carry.
        progress: is told that training goes on.

    Raises:
        UserError: the text cannot fill the vocabulary, or does not fit into it.
        DataError: the given model cannot be used.
    """
    if options.tokenizer_model:
        tokenizer = Tokenizer.load(options.tokenizer_model)
        kind = "given"
    else:
        with progress.task(f"train a {options.tokenizer} vocabulary of {options.vocab_size:,}") as task:
            lines = count_pairs(train) * 2
            tokenizer = Tokenizer(run_in_process(partial(_train, train, lines, options, rule)))
            task.advance(min(lines, options.tokenizer_sample))
        kind = options.tokenizer
    tokenizer.save(target)
    return TokenizerInfo(kind=kind, vocab_size=tokenizer.vocab_size, sha256=tokenizer.sha256)


def _sample_lines(train: Path, lines: int, options: VocabOptions) -> Iterator[str]:
    """``options.tokenizer_sample`` of the source and target sentences, chosen by the seed, in their order."""
    chosen = np.ones(lines, dtype=bool)
    if options.tokenizer_sample < lines:
        rng = np.random.default_rng(options.tokenizer_seed)
        chosen[rng.choice(lines, lines - options.tokenizer_sample, replace=False, shuffle=False)] = False
    begin = 0
    for batch in iter_pairs(train):
        pairs = zip(batch["src"].to_pylist(), batch["tgt"].to_pylist(), strict=True)
        sentences = (sentence for pair in pairs for sentence in pair)
        wanted = chosen[begin : begin + 2 * batch.num_rows].tolist()
        yield from (sentence for sentence, take in zip(sentences, wanted, strict=True) if take)
        begin += 2 * batch.num_rows


def _count_words(sentences: Iterator[str]) -> Iterator[str]:
    """Each word, that is, what spaces separate, with the number of times it occurs."""
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(sentence.split(" "))
    return (f"{word}\t{count}" for word, count in counts.items())


def _train(train: Path, lines: int, options: VocabOptions, rule: str) -> bytes:
    sentences = _sample_lines(train, lines, options)
    # SentencePiece keeps all that it is given in memory. BPE goes by the counts of words, so these are enough to find
    # the same pieces; unigram looks for its first candidates in the running text.
    words_only = options.tokenizer == "bpe"
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_count_words(sentences) if words_only else sentences,
            input_format="tsv" if words_only else "text",
            model_writer=model,
            model_type=options.tokenizer,
            vocab_size=options.vocab_size,
            character_coverage=options.character_coverage,
            normalization_rule_name=rule,
            byte_fallback=True,
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            num_threads=_THREADS,
            train_extremely_large_corpus=options.tokenizer_sample > 10_000_000,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _explain(str(error), options.vocab_size) from None
    return model.getvalue()


def _explain(message: str, vocab_size: int) -> UserError:
    if found := re.search(r"too high .* <= (\d+)", message):
        return UserError(
            f"--vocab-size {vocab_size} is more than this text can fill: give at most {found[1]}, or more text"
        )
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return UserError(
            f"--vocab-size {vocab_size} has no room for the special pieces, 256 bytes and this text's characters: "
            f"give at least {found[1]}, or a lower --character-coverage"
        )
    return DataError(f"SentencePiece cannot train on this text: {message}")
