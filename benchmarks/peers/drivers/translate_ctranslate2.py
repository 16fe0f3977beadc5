"""CTranslate2, with the model of Hugging Face converted by its own converter. Runs in an environment of its own."""

from __future__ import annotations

import ctranslate2
import translation
from ctranslate2.converters.transformers import BartLoader
from transformers import MarianMTModel

COMPUTE_TYPES = {"fp32": "float32", "bf16": "bfloat16"}


def load(request: translation.Request) -> translation.Translate:
    compute_type = COMPUTE_TYPES[request.precision]
    if compute_type not in ctranslate2.get_supported_compute_types("cpu"):
        raise translation.UnsupportedError(f"no {request.precision} on this CPU")
    convert(request)
    translator = ctranslate2.Translator(
        request.work,
        device="cpu",
        compute_type=compute_type,
        inter_threads=request.workers,
        intra_threads=request.threads // request.workers,
    )

    def translate(sentences: translation.Sentences, batch: int) -> translation.Sentences:
        found = translator.translate_batch(
            sentences,
            beam_size=request.beam_size,
            length_penalty=request.length_penalty,
            max_decoding_length=max(map(len, sentences)) + request.extra_tokens,
            max_batch_size=batch,
            batch_type="examples",
        )
        return [result.hypotheses[0] for result in found]

    return translate


def convert(request: translation.Request) -> None:
    """Write the converted model into ``request.work``.

    The loader for Marian expects what Marian itself trains: a decoder that begins with a zero embedding, and padding
    as the last piece. Ours begins with the embedding of ``<s>``, as BART does, so BART's loader is the right one.
    """
    model = MarianMTModel.from_pretrained(request.model)
    model.config.normalize_before = False
    model.config.normalize_embedding = False
    spec = BartLoader().get_model_spec(model)
    vocabulary = request.vocabulary()
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    _, spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = vocabulary[:4]
    spec.config.decoder_start_token = spec.config.bos_token
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize()
    spec.save(request.work)


if __name__ == "__main__":
    translation.main(load)
