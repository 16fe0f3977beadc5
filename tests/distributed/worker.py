"""Run by every rank: trains the cases of a JSON file one after the other, in one set of ranks.

A case is ``{"name": …, "overrides": […], "fragments": […], "resume": PATH or null}``; its run folder is ``OUT/name``.
One that resumes goes on from the checkpoint ``OUT/PATH``, for example ``whole/checkpoints/step-00000005``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from support.runs import TINY

from dstransformer.config import compose, load_config
from dstransformer.corpus import Corpus
from dstransformer.tracking import MetricsLog, NullTracker, RunStart
from dstransformer.training.checkpoint import read_checkpoint
from dstransformer.training.processes import read_processes
from dstransformer.training.signals import StopRequest
from dstransformer.training.trainer import Trainer
from dstransformer.training.world import join_world, leave_world


def main() -> None:
    cases, corpus_path, out = (Path(argument) for argument in sys.argv[-3:])
    processes = read_processes(os.environ)
    world = join_world(processes)
    corpus = Corpus.open(corpus_path)
    for case in json.loads(cases.read_text()):
        config = load_config("toy", [*TINY, *case["overrides"]], case["fragments"])
        ds_config = compose(config, world.world_size)
        run = out / case["name"]
        run.mkdir(exist_ok=True)
        tracker = MetricsLog(run / "metrics.jsonl") if world.is_first else NullTracker()
        trainer = Trainer(config, ds_config, corpus, run, world, tracker, {"case": case["name"]})
        resumed = case.get("resume")
        if resumed is not None:
            trainer.resume(read_checkpoint(out / resumed))
        step = None if resumed is None else int(resumed.rpartition("-")[2])
        tracker.start(RunStart(case["name"], config, ds_config, corpus.manifest, corpus.path, resume_step=step))
        outcome = trainer.run(StopRequest())
        weights = {name: weight.cpu().clone() for name, weight in trainer.engine.iter_weights()}
        if world.is_first:
            torch.save(weights, run / "weights.pt")
            (run / "outcome.json").write_text(json.dumps({"step": outcome.step}))
        world.barrier()
    leave_world()


main()
