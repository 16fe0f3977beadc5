"""``dst plot``: draw the curves of runs, or the learning rates of presets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dstransformer.cli.options import Command, CommandResult, Folder
from dstransformer.errors import UserError
from dstransformer.io.flags import argument, option


class Plot(
    Command,
    examples=("dst plot runs/a runs/b --out curves.svg", "dst plot --schedule base big --out rates.svg"),
):
    """Draw the curves of runs, or the learning rates of presets."""

    runs: Sequence[Folder] = argument("RUN", "folders that dst train wrote, drawn together", default=())
    schedule: Sequence[str] | None = option("draw the learning rates of presets or YAML files instead", "PRESET")
    out: Folder | None = option(
        "the picture, ending in .png, .svg or .pdf (training.png; with --schedule schedule.png)", "FILE"
    )
    smooth: int | None = option("training curves as the mean of N records (1)", "N")
    updates: int | None = option("with --schedule: the last update shown (5 times the longest warm-up)", "N")
    overwrite: bool = option("replace an existing --out")


@Plot.handler
def run(options: Plot) -> CommandResult:
    """Draw runs or schedules, and save the picture."""
    if bool(options.runs) == bool(options.schedule):
        raise UserError("name either the folders of runs, or presets after --schedule; see `dst plot --help`")
    if options.smooth is not None and options.schedule:
        raise UserError("--smooth is for the curves of runs: a schedule is exact")
    if options.updates is not None and not options.schedule:
        raise UserError("--updates is the range of --schedule: runs are drawn as far as they went")
    if options.smooth is not None and options.smooth < 1:
        raise UserError(f"--smooth {options.smooth}: give a number of records, from 1 (no smoothing)")
    from dstransformer.extras.figures import check_picture, save_figure

    out = options.out or Path("schedule.png" if options.schedule else "training.png")
    check_picture(out, overwrite=options.overwrite)
    if options.schedule:
        from dstransformer.extras.plots.curves import draw_schedules, load_schedules

        schedules = load_schedules(options.schedule)
        lines = [f"{schedule.name}: {schedule.describe()}" for schedule in schedules]
        figure = draw_schedules(schedules, options.updates)
    else:
        from dstransformer.extras.plots.curves import draw_runs, read_runs

        runs = read_runs(options.runs)
        lines = [f"{run.name}: update {max(curve.steps[-1] for curve in run.curves.values()):,}" for run in runs]
        figure = draw_runs(runs, options.smooth or 1)
    save_figure(figure, out)
    return CommandResult("\n".join([*lines, str(out)]))
