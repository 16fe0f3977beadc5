"""The learning rate of the paper (section 5.3, equation 3)."""

from dstransformer.config import ScheduleConfig


def learning_rate(step: int, d_model: int, schedule: ScheduleConfig) -> float:
    """``scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)`` for update ``step``, counted from 1."""
    return float(schedule.scale * d_model**-0.5 * min(step**-0.5, step * schedule.warmup_steps**-1.5))
