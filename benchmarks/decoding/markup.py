"""Sentences whose tags a model's alignment puts where the right alignment puts them.

Each sentence gets a random pair of tags, often one inside it, and sometimes a tag without content. The links of the
model in the reference translation, and in its own translations that equal the reference, then place the tags; so do
the sure links of the gold alignment, and the sure and possible ones. A sentence is well tagged if it is as one of these
two place them.
"""

from __future__ import annotations

import argparse
import html
import random
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.lib.bars import print_at_least
from benchmarks.lib.machine import count_cores
from dstransformer.data.alignment import Link
from dstransformer.decoding.aligner import Aligner
from dstransformer.extras.markup.markup import parse_markup
from dstransformer.extras.markup.tag_placement import place_tags
from dstransformer.extras.markup.translator import MarkupTranslator

BAR = 0.99

_LINK = re.compile(r"(\d+)([-p?])(\d+)", re.ASCII)
_TAG = re.compile("<[^<>]*>")


class Example(NamedTuple):
    """A sentence with tags, its translation without, and with the tags where either kind of gold links puts them."""

    marked: str
    source: str
    target: str
    wanted: tuple[str, str]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="a model that was trained with guided alignment")
    parser.add_argument("src", type=Path, help="held-out sentences")
    parser.add_argument("tgt", type=Path, help="their translations")
    parser.add_argument("gold", type=Path, help="their alignments, such as 0-0 1p2, p for possible links")
    parser.add_argument("--sentences", type=int, default=1000, help="default: 1000")
    parser.add_argument("--seed", type=int, default=1, help="of the tags; default: 1")


def main(options: argparse.Namespace) -> None:
    torch.set_num_threads(count_cores())
    rng = random.Random(options.seed)
    files = (options.src, options.tgt, options.gold)
    lines = list(zip(*(path.read_text(encoding="utf-8").splitlines() for path in files), strict=True))
    examples = [make_example(rng, *line) for line in lines[: options.sentences]]
    aligner = Aligner.load(options.bundle, device="cpu")
    began = time.perf_counter()
    links = aligner.align([one.source for one in examples], [one.target for one in examples])
    seconds = time.perf_counter() - began
    found = [
        place_tags(parse_markup(one.marked, ""), one.target, own) for one, own in zip(examples, links, strict=True)
    ]
    report("in the reference translation", examples, found)
    print(f"aligned in {seconds:.1f} s")
    translations = MarkupTranslator.load(options.bundle, device="cpu").translate([one.marked for one in examples])
    same = [
        (one, text)
        for one, text in zip(examples, translations, strict=True)
        if html.unescape(_TAG.sub("", text)) == one.target
    ]
    print(f"translations that equal the reference: {len(same)} of {len(examples)}")
    if same:
        report("in those", *map(list, zip(*same, strict=True)))


def make_example(rng: random.Random, source: str, target: str, gold: str) -> Example:
    sure, every = read_gold(gold)
    marked = mark(rng, source)
    parsed = parse_markup(marked, "")
    return Example(marked, source, target, (place_tags(parsed, target, sure), place_tags(parsed, target, every)))


def read_gold(line: str) -> tuple[list[Link], list[Link]]:
    """The sure links, and the sure and the possible ones."""
    links = [(int(src), int(tgt), kind) for src, kind, tgt in _LINK.findall(line)]
    return [(src, tgt) for src, tgt, kind in links if kind == "-"], [(src, tgt) for src, tgt, _ in links]


def mark(rng: random.Random, sentence: str) -> str:
    """The sentence with a pair of tags around one to four of its words, and perhaps more."""
    words = [html.escape(word, quote=False) for word in sentence.split()]
    begin = rng.randrange(len(words))
    end = min(begin + rng.randint(1, 4), len(words))
    inner = sorted(rng.sample(range(begin, end + 1), 2))
    if rng.random() < 0.3:
        at = rng.randrange(len(words))
        words[at] = f"<img/>{words[at]}"
    if rng.random() < 0.5:
        words[inner[0]] = f"<i>{words[inner[0]]}"
        words[inner[1] - 1] += "</i>"
    words[begin] = f'<a href="x?y&amp;z">{words[begin]}'
    words[end - 1] += "</a>"
    return " ".join(words)


def report(where: str, examples: Sequence[Example], found: Sequence[str]) -> None:
    right = sum(text in one.wanted for one, text in zip(examples, found, strict=True))
    sure = sum(text == one.wanted[0] for one, text in zip(examples, found, strict=True))
    print_at_least(f"share of {len(examples)} sentences well tagged {where}", right / len(examples), BAR, ".3f")
    print(f"of them exactly as by the sure links: {sure}")
    for one, text in list(zip(examples, found, strict=True)):
        if text not in one.wanted:
            print(f"for example {one.marked!r}\n  found {text!r}\n right {one.wanted[0]!r}")
            break
