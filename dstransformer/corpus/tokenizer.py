"""SentencePiece (Kudo and Richardson, 2018) with fixed special ids."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from dstransformer.corpus.text import plain_spaces
from dstransformer.errors import DataError

PAD_ID = 0
UNK_ID = 1
BOS_ID = 2
EOS_ID = 3


class Tokenizer:
    """Text to token ids and back, one vocabulary for both languages.

    The model carries its own Unicode normalisation, so text is treated alike when a corpus is encoded and when a
    sentence is translated. Instances pickle as the bytes of their model.
    """

    def __init__(self, model: bytes, name: str = "tokenizer.model") -> None:
        """Take the bytes of a SentencePiece model; ``name`` is what error messages call it.

        Raises:
            DataError: the bytes are no such model, or its special ids are not those of this module.
        """
        self._model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor()
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError:
            raise DataError(f"{name} is not a SentencePiece model; train one with `dst-prep vocab`") from None
        self.sha256: str = hashlib.sha256(model).hexdigest()
        self.vocab_size: int = self._processor.vocab_size()
        processor = self._processor
        found = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        wanted = (PAD_ID, UNK_ID, BOS_ID, EOS_ID)
        if found != wanted:
            raise DataError(
                f"{name} has (pad, unk, bos, eos) = {found}, but a corpus needs {wanted}: "
                "train it with --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3, or with `dst-prep vocab`"
            )

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a model file; a missing or unusable one is a DataError."""
        try:
            model = Path(path).read_bytes()
        except OSError as error:
            raise DataError(f"cannot read the tokenizer {path}: {error.strerror}") from None
        return cls(model, str(path))

    def save(self, path: str | Path) -> None:
        """Write the model's bytes, unchanged; OSError where the file system refuses."""
        Path(path).write_bytes(self._model)

    def encode(self, texts: Sequence[str], *, threads: int = -1) -> list[list[int]]:
        """Token ids of each text, without BOS and EOS; ``threads`` -1 uses every core.

        Control characters and line separators count as spaces, and runs of spaces as one.
        """
        plain = [plain_spaces(text) for text in texts]
        ids: list[list[int]] = self._processor.encode(plain, num_threads=threads)
        return ids

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Detokenised text of each row of ids; PAD, BOS and EOS leave nothing behind, UNK leaves ``⁇``.

        Ids lie in ``[0, vocab_size)``; another one is an IndexError.
        """
        rows = [[int(token) for token in row] for row in ids]
        texts: list[str] = self._processor.decode(rows)
        return texts

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self._model,)
