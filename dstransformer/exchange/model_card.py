"""The model card of an export: a README with the front matter that the Hugging Face hub reads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from dstransformer.config import DecodingConfig
from dstransformer.data import Tokenizer
from dstransformer.errors import counted, without_secrets
from dstransformer.exchange.hf_tokenizer import is_marian
from dstransformer.model import Bundle, parameter_count
from dstransformer.tracking.metrics_log import METRICS_NAME, read_records

#: The scores of a run's final evaluation that a card shows: key in ``metrics.jsonl``, name on the hub, display name.
_METRICS = (("bleu", "bleu", "BLEU"), ("chrf", "chrf", "chrF"))

#: Scores of the same weights on the same sentences differ by less, even on another processor.
SAME_SCORE = 0.005

_USAGE = """\
```python
from transformers import AutoTokenizer, MarianMTModel

folder = "."  # this folder, or its name on the hub
tokenizer, model = AutoTokenizer.from_pretrained(folder), MarianMTModel.from_pretrained(folder)
{target}inputs = tokenizer(["{tag}A sentence.", "{tag}Another one."], return_tensors="pt", padding=True)
limit = inputs.input_ids.shape[1] + {extra} + 1
outputs = model.generate(**inputs, max_length=limit)
print({decoder}.batch_decode(outputs, skip_special_tokens=True))
```
"""

_OTHER_SEARCH = """\
`generate` searches with the beam of this model, but divides log-probabilities by a power of the length, where
`dst translate`{measured} divides by `{penalty}`. So a few outputs differ.
"""

_SAME_SEARCH = """\
`generate` searches with the beam of this model, and divides log-probabilities by the power of the length that
`dst translate`{measured} divides by too.
"""

#: Where the sides are read by two models: the line that loads the target's, and what else to know.
_TARGET = 'target = AutoTokenizer.from_pretrained(folder, subfolder="target")\n'
_TWO_TOKENIZERS = """\
`tokenizer` encodes inputs; `target`, with another vocabulary or Unicode normalisation, decodes outputs and encodes
labels. So labels are `target(texts).input_ids`, not `tokenizer(text_target=texts)`.
"""

#: Only for a beam: greedy search has no scores, and needs none.
_RESCORING = """\
To choose by the latter among all hypotheses of the beam:

```python
import torch

beam, power = model.generation_config.num_beams, model.generation_config.length_penalty
found = model.generate(
    **inputs, max_length=limit, num_return_sequences=beam, return_dict_in_generate=True, output_scores=True
)
lengths = (found.sequences > tokenizer.eos_token_id).sum(1) + 1  # generate also fills with ends
scores = found.sequences_scores * lengths**power / {penalties}
best = scores.view(-1, beam).argmax(1) + torch.arange(0, len(scores), beam, device=scores.device)
print({decoder}.batch_decode(found.sequences[best], skip_special_tokens=True))
```
"""


class Score(NamedTuple):
    """A score of the final evaluation: of which split, which metric, its value and its signature."""

    split: str
    metric: str
    label: str
    value: float
    signature: str | None


def model_card(bundle: Bundle) -> str:
    """The text of ``README.md``."""
    scores = final_scores(bundle)
    front = yaml.safe_dump(_front_matter(bundle, scores), sort_keys=False, allow_unicode=True, width=1000)
    sections = [
        f"---\n{front}# license: add the one under which you publish the model\n---\n",
        f"# {_title(bundle)}\n",
        f"A Transformer (Vaswani et al., 2017) that translates {_direction(bundle)}, trained with dstransformer "
        f"{bundle.provenance.get('dstransformer', '')} and exported as a `MarianMTModel`.\n",
        "## Use\n",
        *_usage(bundle, scores),
        "## Architecture\n",
        _table(_architecture(bundle)),
        "## Training\n",
        _table(_training(bundle)),
    ]
    if scores:
        sections += ["## Scores\n", "| split | metric | score | signature |", "|---|---|--:|---|"]
        for score in scores:
            # A bare | would begin the next cell.
            signature = "" if score.signature is None else "`" + score.signature.replace("|", r"\|") + "`"
            sections.append(f"| {score.split} | {score.label} | {score.value:.2f} | {signature} |")
        sections.append("")
    return "\n".join(sections)


def _usage(bundle: Bundle, scores: list[Score]) -> Iterator[str]:
    search = bundle.decoding
    measured = ", with which the scores below were measured," if scores else ""
    one_tokenizer = bundle.tokenizer.is_single or is_marian(bundle)
    target, decoder = ("", "tokenizer") if one_tokenizer else (_TARGET, "target")
    tag = next((f"{direction.tag} " for direction in bundle.directions if direction.tag), "")
    code = {
        "extra": search.max_extra_tokens,
        "penalty": _penalty(search, "length"),
        "penalties": _penalty(search, "lengths"),
        "tag": tag,
        "target": target,
        "decoder": decoder,
    }
    yield _USAGE.format(**code)
    same = search.length_offset == 0
    yield (_SAME_SEARCH if same else _OTHER_SEARCH).format(**code, measured=measured)
    if search.beam_size > 1 and not same:
        yield _RESCORING.format(**code)
    if not one_tokenizer:
        yield _TWO_TOKENIZERS


def _penalty(search: DecodingConfig, length: str) -> str:
    """The length penalty as an expression of Python."""
    offset = search.length_offset
    return f"(({offset:g} + {length}) / {offset + 1:g}) ** {search.length_penalty}"


def final_scores(bundle: Bundle) -> list[Score]:
    """The scores of the run's final evaluation, if the bundle is the final one and still in the folder of its run.

    Otherwise the provenance has the score on validation by which the bundle was chosen, without a signature. Any
    other bundle has none.
    """
    final = bundle.provenance.get("final")
    if not isinstance(final, dict):
        return []
    metric, score = final.get("metric"), final.get("scores", {}).get(final.get("chosen"))
    metrics = bundle.path.parent / METRICS_NAME
    stored = read_records(metrics, skip_damaged=True) if metrics.is_file() else ()
    records = {one["kind"].removeprefix("final_"): one for one in stored if one["kind"].startswith("final_")}
    recorded = records.get("validation", {}).get(str(metric))
    if isinstance(score, float) and isinstance(recorded, float) and math.isclose(score, recorded, abs_tol=SAME_SCORE):
        return [
            Score(split, metric, label, records[split][key], records[split].get(f"{key}_signature"))
            for split in ("validation", "test")
            for key, metric, label in _METRICS
            if isinstance(records.get(split, {}).get(key), float)
        ]
    if metric != "bleu" or not isinstance(score, float):
        return []
    return [Score("validation", "bleu", "BLEU", score, None)]


def _title(bundle: Bundle) -> str:
    pairs = dict.fromkeys(direction.name for direction in bundle.directions)
    pair = "-".join(code for code in (bundle.src_lang, bundle.tgt_lang) if code)
    return f"Transformer {', '.join(pairs) or pair}".strip()


def _direction(bundle: Bundle) -> str:
    if bundle.directions:
        named = (
            f"`{direction.src_lang}` to `{direction.tgt_lang}`" + (f" (`{direction.tag}`)" if direction.tag else "")
            for direction in bundle.directions
        )
        return f"{', '.join(named)}, each named by its tag at the start of the sentence"
    if bundle.src_lang and bundle.tgt_lang:
        return f"`{bundle.src_lang}` to `{bundle.tgt_lang}`"
    return "from one language to another"


def _sources(bundle: Bundle) -> str:
    return ", ".join(map(str, bundle.provenance.get("sources") or ())) or "its corpus"


def _front_matter(bundle: Bundle, scores: list[Score]) -> dict[str, Any]:
    codes = [code for direction in bundle.directions for code in (direction.src_lang, direction.tgt_lang)]
    languages = list(dict.fromkeys(code for code in codes or (bundle.src_lang, bundle.tgt_lang) if code))
    front: dict[str, Any] = {
        **({"language": languages} if languages else {}),
        "library_name": "transformers",
        "pipeline_tag": "translation",
        "tags": ["translation", "marian", "dstransformer"],
    }
    if scores:
        front["metrics"] = list(dict.fromkeys(score.metric for score in scores))
        results = [
            {
                "task": {"type": "translation", "name": "Translation"},
                "dataset": {"name": f"{_sources(bundle)} ({split})", "type": _sources(bundle), "split": split},
                "metrics": [
                    {"type": score.metric, "name": score.label, "value": round(score.value, 2)}
                    | ({"args": {"signature": score.signature}} if score.signature else {})
                    for score in scores
                    if score.split == split
                ],
            }
            for split in dict.fromkeys(score.split for score in scores)
        ]
        front["model-index"] = [{"name": _title(bundle), "results": results}]
    return front


def _architecture(bundle: Bundle) -> dict[str, object]:
    model, tokenizer = bundle.model, bundle.tokenizer
    activation = "" if model.activation == "relu" else f" ({model.activation})"
    ties = {"all": "source, target and softmax", "target": "target and softmax", "none": "none"}
    return {
        "layers": f"{model.encoder_depth} + {model.decoder_depth}, norm after each sub-layer",
        "width": f"{model.d_model}, feed-forward {model.d_ff}" + activation,
        "heads": f"{model.num_heads} of {model.d_k} (values {model.d_v})",
        "parameters": f"{parameter_count(model, tokenizer.vocab_size, tokenizer.src.vocab_size):,}",
        "vocabulary": f"{_pieces(tokenizer)}, joint"
        if tokenizer.is_joint
        else f"source {_pieces(tokenizer.src)}, target {_pieces(tokenizer)}",
        "shared embeddings": ties[model.tie_embeddings],
    }


def _pieces(tokenizer: Tokenizer) -> str:
    return f"{tokenizer.vocab_size:,} SentencePiece pieces ({tokenizer.model_type})"


def _training(bundle: Bundle) -> dict[str, object]:
    record, search = bundle.provenance, bundle.decoding
    hardware = record.get("hardware")
    steps = record.get("averaged_steps") or [record.get("step")]
    config = record.get("config")
    scored_in_int8 = isinstance(config, dict) and config.get("training", {}).get("int8_weights")
    facts = {
        "text": _sources(bundle),
        "preset": without_secrets(" ".join(map(str, (record.get("preset") or "", *(record.get("overrides") or ()))))),
        "updates": f"{steps[-1]:,}" if isinstance(steps[-1], int) else None,
        "checkpoints averaged": counted(len(steps), "checkpoint") if len(steps) > 1 else None,
        "hardware": hardware.get("device") if isinstance(hardware, dict) else None,
        "search of the scores": f"beam {search.beam_size}, length penalty "
        + _penalty(search, "length").replace(" ** ", "^"),
        "weights of the scores": "as in an int8 export of CTranslate2" if scored_in_int8 else None,
        "SHA-256 of the bundle's weights": (record.get("files") or {}).get("model.safetensors"),
    }
    return {name: value for name, value in facts.items() if value}


def _table(rows: dict[str, object]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items()), ""])
