"""What is asked for each line, and how lines are written: text, tables, JSON lines, sentence pairs. Needs no torch."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any, Literal

from dstransformer.data.alignment import format_links
from dstransformer.data.tokenizer import plain_spaces
from dstransformer.decoding.texts import Output
from dstransformer.errors import ConfigError, DataError
from dstransformer.io.requirements import check_installed
from dstransformer.io.text import iter_lines

logger = logging.getLogger(__name__)

Format = Literal["text", "tsv", "jsonl", "pairs"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        temperature: Divides the logits: below 1 sharpens the distribution, above 1 flattens it.
        top_k: Draw among the most probable pieces only (Fan et al., 2018); 0: among all.
        top_p: Draw among the fewest most probable pieces whose probabilities add up to this (Holtzman et al., 2020);
            1: among all.
        seed: Another seed draws other outputs.

    Raises:
        ConfigError: A value is out of bounds.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        for name, fits, bounds in (
            ("temperature", 0.01 <= self.temperature <= 100, "0.01 to 100"),
            ("top-k", self.top_k >= 0, "0 or more"),
            ("top-p", 0 < self.top_p <= 1, "more than 0, at most 1"),
            ("seed", 0 <= self.seed < 1 << 63, "0 to 2^63 - 1"),
        ):
            if not fits:
                raise ConfigError(f"--{name} {getattr(self, name.replace('-', '_'))}: must be {bounds}")


@dataclass(frozen=True)
class Request:
    """What is asked for each line.

    Attributes:
        n_best: Outputs per line.
        sampling: Draw outputs instead of searching for the best.
        prefix: What every output begins with.
        prefix_file: A file with a prefix for each line, instead.
        format: ``text``: an output per line; of several, Moses' n-best lists (``line ||| text ||| logprob= L |||
            score``, lines from 0). ``tsv``: line and rank from 1, score, log-probability, text. ``jsonl``: the same
            as JSON, with the source and the number of tokens, end included, and the alignment if there is one.
            ``pairs``: the output and its source line, with a tab between them, as ``dst-prep`` reads them for
            back-translation.
        tag: Stands before the output of each pair (Caswell et al., 2019).
        distinct: Of outputs with the same text (other pieces, the same words) only the first is kept, so that there may
            be fewer than ``n_best``.
        split: The lines are texts of several sentences, which are translated one by one.

    Raises:
        ConfigError: A tag without pairs, or one with spaces; two prefixes; distinct ones of one output; or several
            outputs or prefixes of texts.
        UserError: The package that divides texts is not installed.
    """

    n_best: int = 1
    sampling: Sampling | None = None
    prefix: str = ""
    prefix_file: str | None = None
    format: Format = "text"
    tag: str = ""
    distinct: bool = False
    split: bool = False

    def __post_init__(self) -> None:
        if self.distinct and self.n_best == 1:
            raise ConfigError("--distinct is for lists of several outputs: add --n-best N")
        if self.prefix and self.prefix_file:
            raise ConfigError("--prefix and --prefix-file do not go together: give one")
        if self.split:
            check_installed("sentencex")
            if self.n_best > 1 or self.prefix or self.prefix_file:
                raise ConfigError("--split takes the best output of each sentence: leave out --n-best and prefixes")
        if self.tag and self.format != "pairs":
            raise ConfigError("--tag stands before the output of each pair: add --format pairs")
        if self.tag.split() != [self.tag][: len(self.tag)]:
            raise ConfigError(f"--tag {self.tag!r}: must be one word, such as <BT>")

    def arguments(self) -> dict[str, Any]:
        """What to ask a decoder for; see :meth:`TextDecoder.search`."""
        asked = {"sampling": self.sampling, "split": self.split}
        return {"n_best": self.n_best} | {name: value for name, value in asked.items() if value}

    @property
    def keeps_ends(self) -> bool:
        """Whether lines are read and written with their ends."""
        return self.split and self.format == "text"

    def iter_prefixes(self) -> Iterator[str] | None:
        """The prefix of each line; None if there are none.

        Raises:
            DataError: The file cannot be read.
        """
        if self.prefix_file is not None:
            return iter_lines(self.prefix_file)
        return repeat(self.prefix) if self.prefix else None

    def choose(self, outputs: Sequence[Output]) -> Sequence[Output]:
        """The outputs that are written: all, or of each text the first, which is the best of a search."""
        if not self.distinct:
            return outputs
        by_text: dict[str, Output] = {}
        for output in outputs:
            by_text.setdefault(output.text, output)
        return list(by_text.values())

    def render(self, number: int, source: str, outputs: Sequence[Output]) -> list[str]:
        """The lines that are written for one.

        Args:
            number: The number of the line, from 1.
            source: The line.
            outputs: Its outputs, see :meth:`choose`.
        """
        ranked = list(enumerate(outputs, 1))
        if self.format == "jsonl":
            records = [
                {
                    "line": number,
                    "rank": rank,
                    "source": source,
                    "text": one.text,
                    "score": round(one.score, 6),
                    "log_probability": round(one.log_probability, 6),
                    "tokens": len(one.tokens) + 1,
                    **({} if one.alignment is None else {"alignment": format_links(one.alignment)}),
                }
                for rank, one in ranked
            ]
            return [json.dumps(record, ensure_ascii=False) for record in records]
        if self.format == "tsv":
            return [f"{number}\t{rank}\t{one.score:.6f}\t{one.log_probability:.6f}\t{one.text}" for rank, one in ranked]
        if self.format == "pairs":
            # Without text there is no tag, so that nobody takes the pair for one to train on.
            tagged = [f"{self.tag} {one.text}".strip() if one.text.strip() else "" for one in outputs]
            return [f"{text}\t{plain_spaces(source)}" for text in tagged]
        if self.n_best == 1:
            return [outputs[0].text]
        return [
            f"{number - 1} ||| {one.text} ||| logprob= {one.log_probability:.6f} ||| {one.score:.6f}" for one in outputs
        ]


def warn_of_prefixes_left(prefixes: Iterator[str], lines: int) -> None:
    """Warn if there is a prefix after that of the last line: they may be those of another text.

    Raises:
        DataError: The rest of the file is not text.
    """
    if next(prefixes, None) is not None:
        logger.warning(
            "--prefix-file has more lines than the text, which has %s: do they belong together?", f"{lines:,}"
        )


def take_prefixes(prefixes: Iterator[str], count: int, first: int) -> list[str]:
    """The prefixes of the next ``count`` lines, of which ``first`` is the number of the first.

    Raises:
        DataError: There are fewer prefixes than lines.
    """
    taken = list(islice(prefixes, count))
    if len(taken) < count:
        raise DataError(f"there is no prefix for line {first + len(taken)}: --prefix-file needs one for every line")
    return taken
