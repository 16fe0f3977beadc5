"""dstransformer: its ``Translator`` with a bundle."""

from __future__ import annotations

import translation

from dstransformer.decoding import Translator
from dstransformer.model import DTYPES


def load(request: translation.Request) -> translation.Translate:
    vocabulary = request.vocabulary()
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    translator = Translator.load(request.model, device="cpu", dtype=DTYPES[request.precision])
    search = {
        "beam_size": request.beam_size,
        "length_penalty": request.length_penalty,
        "max_extra_tokens": request.extra_tokens,
    }

    def translate(sentences: translation.Sentences, batch: int) -> translation.Sentences:
        src = [[ids[piece] for piece in sentence] for sentence in sentences]
        # Its batches are counted in tokens: as many as that many sentences have on average.
        tokens = round(batch * sum(len(sentence) + 1 for sentence in src) / len(src))
        translator.settings = translator.settings.model_copy(update={**search, "batch_tokens": tokens})
        return [[vocabulary[number] for number in found] for found in translator.translate_ids(src)]

    return translate


if __name__ == "__main__":
    translation.main(load)
