"""How the target side of a corpus is written: as text, or in the form of an extra. It decides what a model does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pkgutil import resolve_name
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from dstransformer.data.tokenizer import Tokenizer
from dstransformer.errors import shown

#: The form of each extra that has one, by the key under which manifests and bundles state its fields.
FORMS = {"trees": "dstransformer.extras.parsing.linearise:Linearisation"}


@dataclass(frozen=True)
class Form:
    """Text, which SentencePiece encodes. Other forms derive from it, and say what is different.

    Attributes:
        model: What a model that writes it is: ``a parser``; empty if it translates.
        content: What the target side holds: ``trees``.
        decoder: The class that opens bundles of such models, a ``TextDecoder``, as ``module:name``.
        task: The class that evaluates them, a :class:`dstransformer.evaluation.task.Task`, likewise.
        requirements: Packages that the decoder needs, besides those that all need.
        usage: Commands that use a bundle, ``{}``; empty: ``dst translate`` and ``dst evaluate`` do.
    """

    model: ClassVar[str] = ""
    content: ClassVar[str] = "text"
    decoder: ClassVar[str] = "dstransformer.decoding:Translator"
    task: ClassVar[str] = "dstransformer.evaluation.task:Task"
    requirements: ClassVar[tuple[str, ...]] = ()
    usage: ClassVar[tuple[str, ...]] = ()

    def symbols(self, texts: Iterable[str]) -> set[str]:
        """The pieces that a tokenizer must have to encode these texts of the target side."""
        del texts
        return set()

    def sources(self, sentences: Sequence[str]) -> Sequence[str]:
        """Sentences as the encoder reads them."""
        return sentences

    def encode(self, texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
        """The ids of texts of the target side, without begin and end."""
        return tokenizer.encode(texts, threads=1)


def read_form(stored: Mapping[str, Any]) -> Form:
    """The form that a manifest or a bundle states under one of the keys :data:`FORMS`; text, if it does under none.

    Raises:
        ValueError: What it states is not valid.
    """
    for key, name in FORMS.items():
        if (values := stored.get(key)) is not None:
            kind: type[Form] = resolve_name(name)
            try:
                return TypeAdapter(kind).validate_python(values)
            except ValidationError:
                names = " and ".join(field.name for field in fields(kind))
                raise ValueError(f"{key} is {shown(values)}, not {names}") from None
    return Form()
