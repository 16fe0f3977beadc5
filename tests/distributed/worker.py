"""Every rank runs this program: it trains the cases of a JSON file one after the other.

A case is ``{"name": …, "overrides": […], "fragments": […], "resume": PATH or null}``; its run folder is ``OUT/name``.
At the updates listed in ``"infinite": […]``, rank 1 has an infinite gradient; with ``"infinite_at": […]`` it has one
wherever the data of these updates of the first epoch are, counted from 0. ``outcome.json`` then says whether they left
weights and moments unchanged, and how training diverged, if it did.

With ``"room": TOKENS`` the number of micro-batches is found by trial, in which rank 1 has memory for a micro-batch of
so many source tokens. ``outcome.json`` has the number.

With ``"final": false`` the run makes no final bundle. With ``"resume"``, it resumes from the checkpoint ``OUT/PATH``,
for example ``whole/checkpoints/step-00000005``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from support.training.runs import TINY

from dstransformer.config import load_config
from dstransformer.data import Corpus
from dstransformer.data.loader import Update
from dstransformer.distributed.launcher import read_processes
from dstransformer.distributed.supervision.session import Session
from dstransformer.distributed.world import World, join_world, leave_world
from dstransformer.errors import DivergedError
from dstransformer.model import Transformer
from dstransformer.tracking.events import NullTracker, RunStart, Tracker
from dstransformer.tracking.metrics_log import MetricsLog
from dstransformer.training.build import build_engine, build_trainer
from dstransformer.training.checkpoints.format import read_checkpoint
from dstransformer.training.engine import Step
from dstransformer.training.experiment import Experiment, TrainRequest
from dstransformer.training.final import make_final_bundle
from dstransformer.training.plan import Plan
from dstransformer.training.trainer import Trainer
from dstransformer.training.trial import try_micro_batches


def run_to_the_end(trainer: Trainer, *, final: bool) -> str | None:
    """Train and, if ``final``, write the final bundle; return how training diverged, or None."""
    try:
        trainer.fit()
    except DivergedError as error:
        return str(error)
    if final:
        make_final_bundle(trainer)
    return None


@contextmanager
def inject_infinities(trainer: Trainer, updates: list[int], places: list[int], world: World) -> Iterator[list[bool]]:
    """Make gradients of rank 1 infinite at these updates, of the first parameter and of a matrix of a layer.

    Yields whether each left the weights and the moments of all ranks unchanged.
    """
    unchanged: list[bool] = []
    engine: Any = trainer.engine
    step, now = engine.step, False

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        return torch.full_like(gradient, float("inf")) if now and world.rank == 1 else gradient

    def watched(update: Update, number: int) -> Step:
        nonlocal now
        now = number in updates or (update.position.epoch == 0 and update.position.update in places)
        if not now:
            return step(update, number)
        before = copy_state()
        done = step(update, number)
        after = copy_state()
        unchanged.append(all(world.gather(all(torch.equal(tensor, after[name]) for name, tensor in before.items()))))
        return done

    def copy_state() -> dict[tuple[str, str], torch.Tensor]:
        """All weights, and the weights and moments that this rank updates."""
        whole = {("whole", name): weight.clone() for name, weight in engine.iter_weights()}
        shards = engine._partition.shards()
        return whole | {
            (kind, shard.name): tensor.clone() for shard in shards for kind, tensor in shard.tensors.items()
        }

    if updates or places:
        engine.step = watched
        model = engine._objective.model
        for parameter in (next(model.parameters()), model.encoder[0].feed_forward.inner.weight):
            parameter.register_hook(spoil)
    yield unchanged


@contextmanager
def limit_memory(room: int, world: World) -> Iterator[None]:
    """Let rank 1 run out of memory in the forward pass of a larger micro-batch."""
    forward: Any = Transformer.forward

    def limited(model: Transformer, src: torch.Tensor, *others: Any) -> Any:
        sums = forward(model, src, *others)
        if world.rank == 1 and torch.is_grad_enabled() and len(src) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return sums

    with mock.patch.object(Transformer, "forward", limited):
        yield


def main() -> None:
    cases, corpus_path, out = (Path(argument) for argument in sys.argv[-3:])
    processes = read_processes(os.environ)
    world = join_world(processes)
    corpus = Corpus.open(corpus_path)
    for case in json.loads(cases.read_text()):
        config = load_config("toy", [*TINY, *case["overrides"]], case["fragments"])
        run = out / case["name"]
        run.mkdir(exist_ok=True)
        room = case.get("room")
        experiment = Experiment.build(TrainRequest("toy", corpus_path, run), config, corpus, world.world_size)
        plan = Plan(config)
        tracker: Tracker = MetricsLog(run / "metrics.jsonl") if world.is_rank0 else NullTracker()
        session = Session(world)
        engine = build_engine(experiment, plan, session)
        if room is not None:
            with limit_memory(room, world):
                experiment = try_micro_batches(experiment, engine, session)
        trainer = build_trainer(experiment, engine, {"case": case["name"]}, tracker, session)
        resumed = case.get("resume")
        if resumed is not None:
            trainer.restore(read_checkpoint(out / resumed))
        step = None if resumed is None else int(resumed.rpartition("-")[2])
        tracker.emit(
            RunStart(case["name"], config, experiment.ds_config, corpus.manifest, corpus.path, resume_step=step)
        )
        infinite = case.get("infinite", []), case.get("infinite_at", [])
        with inject_infinities(trainer, *infinite, world) as unchanged:
            diverged = run_to_the_end(trainer, final=case.get("final", True))
        weights = {name: weight.cpu().clone() for name, weight in trainer.engine.iter_weights()}
        if world.is_rank0:
            torch.save(weights, run / "weights.pt")
            said = {"step": None if diverged else trainer.state.step, "unchanged": unchanged, "diverged": diverged}
            said |= {} if room is None else {"micro_batches": trainer.config.batch.micro_batches}
            (run / "outcome.json").write_text(json.dumps(said))
        world.barrier()
    leave_world()


main()
