"""The learning rate of an update: the paper's schedule (section 5.3), and curves that end with the training."""

from __future__ import annotations

import math

from dstransformer.config import Config, ScheduleConfig


def learning_rate(step: int, d_model: int, schedule: ScheduleConfig, max_updates: int) -> float:
    """The learning rate of update ``step``, from 1.

    The paper's (equation 3) is ``scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)``; with
    ``schedule.peak`` the same curve, with that value at the end of the warm-up whatever ``d_model`` is.

    The other kinds rise as far in the warm-up, and then fall to the share ``schedule.final`` of that, which they reach
    after ``max_updates`` updates: on a line, on half a period of a cosine, or, ``warmup_stable_decay``, on a line in
    the last ``schedule.decay * max_updates`` updates.
    """
    warmup = schedule.warmup_steps
    height = schedule.scale * d_model**-0.5 if schedule.peak is None else schedule.peak * warmup**0.5
    if schedule.kind == "inverse_sqrt" or step <= warmup:
        return float(height * min(step**-0.5, step * warmup**-1.5))
    begin = decay_begin(schedule, max_updates)
    passed = min(1.0, max(0.0, (step - begin) / max(1, max_updates + 1 - begin)))
    left = (1 + math.cos(math.pi * passed)) / 2 if schedule.kind == "cosine" else 1 - passed
    highest = height * min(warmup**-0.5, warmup * warmup**-1.5)
    return float(highest * (schedule.final + (1 - schedule.final) * left))


def decay_begin(schedule: ScheduleConfig, max_updates: int) -> int:
    """The last update with the highest learning rate."""
    if schedule.kind != "warmup_stable_decay":
        return schedule.warmup_steps
    return max(schedule.warmup_steps, max_updates - round(schedule.decay * max_updates))


def describe_jump(step: int, before: Config, now: Config) -> str | None:
    """How the learning rate jumps where a run goes on after update ``step``, with other values; None if it does not."""
    old, new = (
        learning_rate(step + 1, config.model.d_model, config.schedule, config.training.max_updates)
        for config in (before, now)
    )
    if math.isclose(old, new, rel_tol=1e-9):
        return None
    why = "other values of the schedule"
    if before.schedule == now.schedule:
        why = f"{now.schedule.kind} ends with training.max_updates, {before.training.max_updates:,} before"
        if now.schedule.kind == "warmup_stable_decay":
            why += "; extend such a run from a checkpoint before its decay"
    return f"the learning rate of update {step + 1:,} jumps from {old:.3g} to {new:.3g}: {why}"
