"""Sentences a second of a model on one core."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

from dstransformer.io.command import run_guarded

#: Sentences that are translated before the clock starts, and seconds for which the text is translated again and again.
WARM_UP, SECONDS = 20, 3.0


def main() -> int:
    """Measure a bundle with PyTorch, or an export with CTranslate2."""
    parser = argparse.ArgumentParser(description="Measure the sentences a second of a model on one core.")
    parser.add_argument("model", type=Path, help="a bundle, or what dst export ct2 wrote")
    parser.add_argument(
        "--ensemble", type=Path, action="append", default=[], help="a bundle to decode together with it"
    )
    parser.add_argument("--no-shortlist", action="store_true", help="all pieces, also if the export has a shortlist")
    parser.add_argument("--src", type=Path, required=True, help="sentences")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import torch

    from dstransformer.decoding import Translator
    from dstransformer.exchange.ct2_engine import open_ct2
    from dstransformer.io.products import export_tool
    from dstransformer.io.text import iter_lines

    torch.set_num_threads(1)
    is_export = export_tool(options.model) == "ct2"
    if is_export:
        translator = open_ct2(options.model, threads=1, shortlist=not options.no_shortlist)
    else:
        translator = Translator.load(options.model, others=options.ensemble, device="cpu")
    sentences = list(iter_lines(options.src))
    translator.translate(sentences[:WARM_UP])
    passes: list[float] = []
    while sum(passes) < SECONDS:
        began = time.perf_counter()
        translator.translate(sentences)
        passes.append(time.perf_counter() - began)
    seconds = statistics.median(passes)
    result = {
        "engine": "ctranslate2" if is_export else "torch",
        "sentences": len(sentences),
        "passes": len(passes),
        "seconds": round(seconds, 3),
        "sentences_per_second": round(len(sentences) / seconds, 2),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(run_guarded("distill", main))
