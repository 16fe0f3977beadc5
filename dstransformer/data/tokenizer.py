"""SentencePiece (Kudo and Richardson, 2018) with fixed special ids, whatever ids the model itself uses."""

import hashlib
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import sentencepiece

from dstransformer.errors import DataError, shown
from dstransformer.io.files import read_bounded, write_durably

#: Maximum bytes of a model. One with a million pieces has 30 million.
MAX_BYTES = 2**28

#: File names of the models in a corpus or a bundle. The second exists if each side has its own vocabulary.
TOKENIZER_NAME, SRC_TOKENIZER_NAME = "tokenizer.model", "tokenizer.src.model"

#: Begins the name of the rule that a model for both languages normalises the text of the target side by.
TARGET_RULE = "target:"

PAD_ID = 0
UNK_ID = 1
BOS_ID = 2
EOS_ID = 3

# Unicode's format characters (Cf) and default-ignorable code points, as ranges, because exports carry them to regular
# expressions without these properties or long escapes. Left out is what a reader sees or scripts are spelled with: the
# joiners U+034F, U+200C and U+200D, variation selectors, fillers of Hangul syllables, tags of flags, signs around
# numbers, hieroglyphs.
INVISIBLE_CHARACTERS = (
    r"[\u00ad\u061c\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e001f\U000e0080-\U000e00ff\U000e01f0-\U000e0fff]"
)
# With U+2581, which SentencePiece reads as a space.
CONTROL_CHARACTERS = r"[\u0000-\u001f\u007f-\u009f\u2028\u2029\u2581]+"

_INVISIBLE = re.compile(INVISIBLE_CHARACTERS)
_CONTROL = re.compile(CONTROL_CHARACTERS)

# Spaces (the blank of Braille is one), joiners, variation selectors, fillers and tags: alone they show nothing.
BLANK_CHARACTERS = (
    r"\s\u2800\u034f\u115f\u1160\u180b-\u180d\u180f\u200c\u200d\ufe00-\ufe0f"
    "\U000e0020-\U000e007f\U000e0100-\U000e01ef"
)
_VISIBLE = re.compile(f"[^{BLANK_CHARACTERS}]")


class Tokenizer:
    """Text to token ids and back: one vocabulary for both languages, or the target's, with the source's as ``src``.

    The model applies its own Unicode normalisation, so text is treated the same way when a corpus is encoded and when a
    sentence is translated. A model for both languages may have a rule of its own for the target side, which it states
    as its denormaliser under a name that begins with :data:`TARGET_RULE`: other programs apply that to what they
    decode, where it changes nothing. Instances pickle as the bytes of their model.

    Ids are PAD, UNK, BOS, EOS, then the model's other pieces in their order. A model that numbers its special pieces
    differently or lacks some (those of OPUS-MT, Marian and Llama do) is mapped to these ids; its bytes stay unchanged.
    """

    def __init__(self, model: bytes, name: str = TOKENIZER_NAME, src: "Tokenizer | None" = None) -> None:
        """Load a SentencePiece model from its bytes; ``name`` identifies it in errors.

        ``src`` is the tokenizer of the source side; None if this one is for both sides.

        Raises:
            DataError: The bytes are not a model, or it has no piece for unknown text.
        """
        _load(model, name)
        self._stored = model
        self._src_model, self._model = _divide(model)
        self._src = None if src is None else src.src
        self._processor = processor = _load(self._model, name)
        self.sha256: str = hashlib.sha256(model).hexdigest()
        special = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        if special[UNK_ID] < 0:
            raise DataError(f"{name} has no piece for unknown text (<unk>): train one with `dst-prep vocab`")
        pieces: int = processor.vocab_size()
        others = [piece for piece in range(pieces) if piece not in special]
        #: Number of ids: the four special ones, which the model may lack, and one for every other piece.
        self.vocab_size: int = len(special) + len(others)
        #: The number of each id's piece in the SentencePiece model; negative for a special piece that it lacks.
        self.model_pieces = (*special, *others)
        self._is_identity = self.model_pieces == tuple(range(pieces))
        self._id_of_piece = [0] * pieces
        for token, piece in enumerate(self.model_pieces):
            if piece >= 0:
                self._id_of_piece[piece] = token

    @classmethod
    def load(cls, path: str | Path, src: "Tokenizer | None" = None) -> "Tokenizer":
        """Read a model file; for ``src`` see the constructor.

        Raises:
            DataError: The file is missing or unusable.
        """
        try:
            if not Path(path).is_file() and Path(path).exists():
                raise DataError(f"{path} is not a file: the tokenizer is a SentencePiece model, for example spm.model")
            model = read_bounded(Path(path), MAX_BYTES)
        except OSError as error:
            raise DataError(f"cannot read the tokenizer {path}: {error.strerror}") from None
        return cls(model, str(path), src)

    @property
    def is_joint(self) -> bool:
        """Whether the vocabulary is one for both sides."""
        return self._src is None

    @cached_property
    def src(self) -> "Tokenizer":
        """The tokenizer of the source side: this one itself if it reads both sides alike."""
        if self._src is None and self._src_model != self._model:
            return Tokenizer(self._src_model)
        return self if self._src is None else self._src

    @property
    def is_single(self) -> bool:
        """Whether one model reads both sides, and by one rule."""
        return self.src is self

    @cached_property
    def tgt(self) -> "Tokenizer":
        """The tokenizer of the target side alone, which reads any text by the rule of that side."""
        return self if self.is_single else Tokenizer(self._model)

    @cached_property
    def shares_ids(self) -> bool:
        """Whether an id is the same piece on both sides, so that one matrix can hold the embeddings of both.

        True of a joint vocabulary, and of two models that divide text differently but number the same pieces alike, as
        imported ones of OPUS-MT do.
        """
        return self.is_joint or self.src.pieces(range(self.src.vocab_size)) == self.pieces(range(self.vocab_size))

    @cached_property
    def identity(self) -> str:
        """A hash of the model, or of both."""
        sha256 = self.sha256
        return sha256 if self.is_joint else hashlib.sha256(f"{self.src.sha256} {sha256}".encode()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write the model's bytes, unchanged, and flush them to disk."""
        write_durably(Path(path), self._stored)

    def save_in(self, folder: Path) -> tuple[str, ...]:
        """Write the model, or both, into a folder; returns the names of the files."""
        self.save(folder / TOKENIZER_NAME)
        if self.is_joint:
            return (TOKENIZER_NAME,)
        self.src.save(folder / SRC_TOKENIZER_NAME)
        return TOKENIZER_NAME, SRC_TOKENIZER_NAME

    def encode(self, texts: Sequence[str], *, threads: int = -1) -> list[list[int]]:
        """Encode each text to token ids, without BOS and EOS; ``threads`` -1 uses every core.

        Control characters and line separators count as spaces, and runs of spaces as one.

        Raises:
            TypeError: ``texts`` is one string.
        """
        if isinstance(texts, str):
            raise TypeError(f"encode takes a list of texts, not one string: [{texts[:40]!r}]")
        plain = [plain_spaces(text) for text in texts]
        rows: list[list[int]] = self._processor.encode(plain, num_threads=threads)
        id_of_piece = self._id_of_piece
        return rows if self._is_identity else [[id_of_piece[piece] for piece in row] for row in rows]

    def offsets(self, texts: Sequence[str], *, threads: int = 1) -> list[list[int]]:
        """The character of its text at which each piece begins; texts as :func:`plain_spaces` returns them."""
        spelled = self._processor.encode(list(texts), num_threads=threads, return_type="proto")
        return [_begins(text, pieces) for text, pieces in zip(texts, spelled, strict=True)]

    def decoded_offsets(self, ids: Sequence[int]) -> tuple[str, list[int]]:
        """The text of ids, before control characters are replaced, and where in it each begins. No id is special."""
        (spelled,) = self._processor.decode([[self.model_pieces[token] for token in ids]], return_type="proto")
        return spelled.text, _begins(spelled.text, spelled)

    def proto(self) -> Any:
        """The model as SentencePiece's ``ModelProto``: its pieces, and how it was trained and normalises."""
        from sentencepiece import sentencepiece_model_pb2 as formats

        return formats.ModelProto.FromString(self._model)

    @property
    def model_type(self) -> str:
        """The kind of the model: ``bpe``, ``unigram``, ``word`` or ``char``."""
        trained = self.proto().trainer_spec
        return str(trained.ModelType.Name(trained.model_type)).lower()

    @cached_property
    def symbols(self) -> dict[str, int]:
        """Ids of the user-defined symbols, by their text."""
        return {
            piece.piece: self._id_of_piece[number]
            for number, piece in enumerate(self.proto().pieces)
            if piece.type == piece.USER_DEFINED
        }

    def scores(self) -> dict[str, tuple[int, float]]:
        """Id and score of every ordinary piece, by its text. BPE merges in the order of the scores, highest first."""
        model = self._processor
        return {
            model.id_to_piece(piece): (token, model.get_score(piece))
            for token, piece in enumerate(self.model_pieces)
            if token > EOS_ID
            and not (model.is_byte(piece) or model.is_control(piece) or model.is_unused(piece))
            and model.id_to_piece(piece) not in self.symbols
        }

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Decode each row of ids to text. PAD, BOS and EOS are left out, UNK becomes ``⁇``.

        Raises:
            TypeError: ``ids`` is not a list of rows of ids.
            IndexError: An id is outside ``[0, vocab_size)``.
        """
        try:
            rows = [[int(token) for token in row] for row in ids]
        except (TypeError, ValueError):
            raise TypeError(f"decode takes rows of ids, such as [[5, 6, 7]], not {shown(ids)}") from None
        if any(min(row) < 0 or max(row) >= self.vocab_size for row in rows if row):
            raise IndexError(f"an id is outside of the vocabulary of {self.vocab_size} pieces")
        if not self._is_identity:
            rows = [[piece for piece in map(self.model_pieces.__getitem__, row) if piece >= 0] for row in rows]
        texts: list[str] = self._processor.decode(rows)
        return texts

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id, as the model spells it: ``▁`` is a space, ``<0xE4>`` a byte of an unseen character.

        The special ids are ``<pad>``, ``<unk>``, ``<s>`` and ``</s>``, whatever the model calls them.

        Raises:
            IndexError: An id is outside ``[0, vocab_size)``.
        """
        special = ("<pad>", "<unk>", "<s>", "</s>")
        return [
            special[token] if token < len(special) else self._processor.id_to_piece(self.model_pieces[token])
            for token in map(int, ids)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self._stored, TOKENIZER_NAME, self._src)


def _divide(model: bytes) -> tuple[bytes, bytes]:
    """The models of the source and the target side that a model for both holds: itself twice, unless rules differ."""
    from sentencepiece import sentencepiece_model_pb2 as formats

    proto = formats.ModelProto.FromString(model)
    rule = proto.denormalizer_spec
    if not rule.name.startswith(TARGET_RULE):
        return model, model
    name, characters = rule.name.removeprefix(TARGET_RULE), rule.precompiled_charsmap
    proto.ClearField("denormalizer_spec")
    src = proto.SerializeToString()
    proto.normalizer_spec.name, proto.normalizer_spec.precompiled_charsmap = name, characters
    return src, proto.SerializeToString()


def _load(model: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
    try:
        processor = sentencepiece.SentencePieceProcessor()
        processor.LoadFromSerializedProto(model)
    except (RuntimeError, UnicodeError):
        raise DataError(f"{name} is not a SentencePiece model; train one with `dst-prep vocab`") from None
    return processor


def _begins(text: str, spelled: Any) -> list[int]:
    """Where the pieces of a ``SentencePieceText`` begin. It counts bytes."""
    begins = [piece.begin for piece in spelled.pieces]
    if text.isascii():
        return begins
    characters = [number for number, character in enumerate(text) for _ in character.encode()]
    return [characters[begin] if begin < len(characters) else len(text) for begin in begins]


def plain_spaces(text: str) -> str:
    """Remove invisible characters and replace each run of control characters or line separators by a space.

    A text in which nothing is visible becomes empty.
    """
    if text.isascii() and text.isprintable():  # the common case: none of these characters is printable ASCII
        return text
    text = _CONTROL.sub(" ", _INVISIBLE.sub("", text))
    return text if _VISIBLE.search(text) else ""
