"""The JSON of requests and answers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class StrictModel(BaseModel):
    """Base of the requests: no unknown keys, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True)


#: The direction in which a model of several translates.
To = Annotated[
    str | None,
    Field(description="target language, or its tag, of a model of several; without it a text begins with its tag"),
]


class TranslateRequest(StrictModel):
    """One sentence or several. A text is one sentence, unless it is split: line breaks in it count as spaces."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"text": "A dog runs."}, {"text": ["A dog runs.", "Two men."], "n_best": 2}]}
    )

    text: Annotated[str | list[str], Field(description="a sentence, or a list of sentences")]
    n_best: Annotated[
        int | None,
        Field(ge=1, description="hypotheses to return for each sentence, at most the beam size; without it, the best"),
    ] = None
    prefix: Annotated[
        str | list[str] | None,
        Field(description="how the translation must begin: one text for all sentences, or a list with one for each"),
    ] = None
    to: To = None
    alignments: Annotated[bool, Field(description="whether to return the word alignment of each translation")] = False
    markup: Annotated[
        bool, Field(description="whether text has inline HTML or XML tags, which the translations are to have too")
    ] = False
    split: Annotated[
        bool, Field(description="whether texts have several sentences, to be translated one by one and joined again")
    ] = False


#: Pairs of linked words.
Alignment = list[tuple[int, int]]


class Hypothesis(BaseModel):
    """One of several translations of a sentence."""

    text: Annotated[str, Field(description="the translation")]
    score: Annotated[float, Field(description="log-probability over the length penalty; higher is better")]
    log_probability: Annotated[float, Field(description="log-probability of the tokens and the end, in nats")]
    alignment: Annotated[Alignment | None, Field(description="as that of the best translation")] = None


class Translation(BaseModel):
    """The translation of a sentence; an empty sentence has an empty one."""

    text: Annotated[str, Field(description="the best translation, on one line unless it was split")]
    score: Annotated[float | None, Field(description="the score of the best; only if n_best was given")] = None
    alignment: Annotated[
        Alignment | None,
        Field(description="numbers of linked words, source and target, from 0, without tags; only if asked for"),
    ] = None
    n_best: Annotated[
        list[Hypothesis] | None, Field(description="the best hypotheses, best first; only if n_best was given")
    ] = None


class TranslateAnswer(BaseModel):
    """The translations, in the order of the sentences; a list also if one text was sent."""

    translations: Annotated[list[Translation], Field(description="a translation of each sentence")]


class AttentionRequest(StrictModel):
    """A sentence and its translation."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"source": "A dog runs.", "target": "Ein Hund rennt."}]})

    source: Annotated[str, Field(description="the sentence")]
    target: Annotated[str, Field(description="its translation")]
    to: To = None


class AttentionAnswer(BaseModel):
    """How much each word of the translation attends to each word of the sentence, averaged over layers and heads."""

    source: Annotated[list[str], Field(description="the words of the sentence")]
    target: Annotated[list[str], Field(description="the words of the translation")]
    weights: Annotated[
        list[list[float]],
        Field(description="a row for each word of the translation; what is missing from 1 is the end"),
    ]


class Health(BaseModel):
    """What is served, and whether it takes requests."""

    status: Annotated[str, Field(description="ready; stopping; failed, if decoding has ended: restart the server")]
    model: Annotated[str, Field(description="name of the bundle's folder")]
    weights_sha256: Annotated[str | None, Field(description="SHA-256 of the weights file")]
    src_lang: Annotated[str | None, Field(description="code of the source language")]
    tgt_lang: Annotated[str | None, Field(description="code of the target language")]
    directions: Annotated[
        list[dict[str, str | None]], Field(description="src_lang, tgt_lang and tag of each direction, of several")
    ]
    guided_alignment: Annotated[bool, Field(description="whether the model has learned alignments; else they are poor")]
    decoding: Annotated[dict[str, Any], Field(description="settings of the search, device and precision")]
    limits: Annotated[dict[str, Any], Field(description="the limits of the server")]
    version: Annotated[str, Field(description="of dstransformer")]


class Problem(BaseModel):
    """Why a request was not answered."""

    detail: Annotated[str, Field(description="one line: what is wrong and what to do")]


#: What each key of a request must be, for error messages.
EXPECTED = {
    "text": "a string or a list of strings",
    "n_best": "a whole number, 1 or more",
    "prefix": "a string or a list of strings",
    "source": "a string",
    "target": "a string",
    "to": "a string",
    "alignments": "true or false",
    "markup": "true or false",
    "split": "true or false",
}

#: The addresses: what each is for, its request (None for GET), and its answer with the objects in it.
INTERFACE: dict[str, tuple[str, type[BaseModel] | None, tuple[type[BaseModel], ...]]] = {
    "/translate": ("Translate sentences", TranslateRequest, (TranslateAnswer, Translation, Hypothesis)),
    "/attention": ("Attention between words", AttentionRequest, (AttentionAnswer,)),
    "/healthz": ("What is served; 503 if it takes no requests", None, (Health,)),
    "/metrics": ("Counters for Prometheus", None, ()),
}
