"""The rows of Table 3: what the paper reports, and the experiment of each row at any scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dstransformer.config import Config, load_config, preset_names
from dstransformer.errors import ConfigError, UserError, shown

#: The preset of the unscaled base, and those behind ``--scale paper`` and ``--scale small``.
BASE = "base"
SCALES = {"paper": BASE, "small": "table3/small"}

#: Columns of the table that say how a row differs, as in the paper: heading and key of the configuration.
COLUMNS = {
    "N": "model.num_layers",
    "d_model": "model.d_model",
    "d_ff": "model.d_ff",
    "h": "model.num_heads",
    "d_k": "model.d_k",
    "d_v": "model.d_v",
    "P_drop": "model.dropout",
    "ε_ls": "loss.label_smoothing",
    "positions": "model.positions",
    "updates": "training.max_updates",
}


@dataclass(frozen=True)
class Row:
    """A row of Table 3, with the paper's figures for newstest2013.

    Attributes:
        group: The paper's group: ``base``, ``A`` to ``E``, ``big``.
        preset: The preset of the row. Its last part is the row's name.
        perplexity: Per piece of the paper's vocabulary.
        bleu: BLEU as the paper computes it.
        parameters: In millions; None where the paper leaves the cell empty because it equals ``base``.
    """

    group: str
    preset: str
    perplexity: float
    bleu: float
    parameters: int | None = None

    @property
    def name(self) -> str:
        """The name of the row, its run and its folder: ``c_layers_2``."""
        return self.preset.rpartition("/")[2]


#: Table 3 of the paper, in its order.
ROWS = (
    Row("base", "base", 4.92, 25.8, 65),
    Row("A", "table3/a_heads_1", 5.29, 24.9),
    Row("A", "table3/a_heads_4", 5.00, 25.5),
    Row("A", "table3/a_heads_16", 4.91, 25.8),
    Row("A", "table3/a_heads_32", 5.01, 25.4),
    Row("B", "table3/b_d_k_16", 5.16, 25.1, 58),
    Row("B", "table3/b_d_k_32", 5.01, 25.4, 60),
    Row("C", "table3/c_layers_2", 6.11, 23.7, 36),
    Row("C", "table3/c_layers_4", 5.19, 25.3, 50),
    Row("C", "table3/c_layers_8", 4.88, 25.5, 80),
    Row("C", "table3/c_d_model_256", 5.75, 24.5, 28),
    Row("C", "table3/c_d_model_1024", 4.66, 26.0, 168),
    Row("C", "table3/c_d_ff_1024", 5.12, 25.4, 53),
    Row("C", "table3/c_d_ff_4096", 4.75, 26.2, 90),
    Row("D", "table3/d_dropout_0.0", 5.77, 24.6),
    Row("D", "table3/d_dropout_0.2", 4.95, 25.5),
    Row("D", "table3/d_label_smoothing_0.0", 4.67, 25.3),
    Row("D", "table3/d_label_smoothing_0.2", 5.47, 25.7),
    Row("E", "table3/e_learned_positions", 4.92, 25.7),
    Row("big", "big", 4.33, 26.4, 213),
)


def select_rows(names: Sequence[str]) -> list[Row]:
    """The rows that groups (``A``) and names (``c_layers_2``) select, in the paper's order; none select all.

    Raises:
        UserError: There is no such group or row.
    """
    known = {name for row in ROWS for name in (row.group, row.name)}
    for name in names:
        if name not in known:
            groups = ", ".join(dict.fromkeys(row.group for row in ROWS))
            rows = ", ".join(row.name for row in ROWS if row.name not in ("base", "big"))
            near = get_close_matches(name, [row.name for row in ROWS], n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(
                f"--rows {shown(name)}: Table 3 has no such row; {hint}the groups are {groups}, the rows {rows}"
            )
    return [row for row in ROWS if not names or {row.group, row.name} & set(names)]


def scale_row(row: Row, scale: str, updates: int | None = None) -> dict[str, Any]:
    """The experiment of a row at a scale, as a preset: ``extends`` and the values that differ.

    A number that the row changes is changed by the same factor here: with a base of 3 layers, N = 4 of the paper's 6
    becomes 2. Other values are copied. No row averages checkpoints, as in section 6.2. A scale is a name of ``SCALES``,
    or a preset that takes the place of ``base``; without ``updates`` of the base they are those of that preset.

    Raises:
        ConfigError: The preset is unknown, a scaled integer is not whole, or the row would equal its base.
    """
    preset = scale_preset(scale)
    small = load_config(preset).model_dump()
    paper, changed = load_config(BASE).model_dump(), load_config(row.preset).model_dump()
    tree: dict[str, Any] = {"extends": preset, "checkpoint": {"average_last": 1}}
    if updates is not None:
        small["training"]["max_updates"] = updates
        tree["training"] = {"max_updates": updates}
    for section in ("model", "loss", "training"):
        for key, value in changed[section].items():
            if value != paper[section][key]:
                where = f"{row.name}: {section}.{key}"
                scaled = _scale(value, paper[section][key], small[section][key], where, scale)
                if scaled == small[section][key]:
                    raise ConfigError(
                        f"--scale {scale}: {where} would be {scaled} as in the base: leave out this row with "
                        "--rows, or choose another scale"
                    )
                tree.setdefault(section, {})[key] = scaled
    return tree


def scale_preset(scale: str) -> str:
    """The preset behind a scale; a file by its absolute path.

    Raises:
        ConfigError: There is no such preset.
    """
    preset = SCALES.get(scale, scale)
    if not preset.endswith((".yaml", ".yml")) and preset not in preset_names():
        raise ConfigError(f"--scale {shown(scale)}: give {', '.join(SCALES)}, or a preset (`dst presets` lists them)")
    return str(Path(preset).absolute()) if preset.endswith((".yaml", ".yml")) else preset


def _scale(value: Any, paper: Any, small: Any, where: str, scale: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if isinstance(value, float):
        return round(small * value / paper, 10)
    scaled, rest = divmod(small * value, paper)
    if rest or not scaled:
        raise ConfigError(
            f"--scale {scale}: {where} would be {small} x {value} / {paper} = {small * value / paper:.2f}, which is "
            "not a whole number: choose another scale, or leave out this row with --rows"
        )
    return scaled


def differences(config: Config, base: Config | None) -> dict[str, Any]:
    """The values of ``COLUMNS`` in which a row differs from base; without ``base`` all of them."""
    found = {}
    for heading, key in COLUMNS.items():
        section, _, name = key.partition(".")
        value = getattr(getattr(config, section), name)
        if base is None or value != getattr(getattr(base, section), name):
            found[heading] = value
    return found
