"""What a format holds: a table of settings and the values that they may have. Everything else is refused by name.

So a part of the model that is new is refused by every export until its table says how it is held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from dstransformer.errors import DataError, shown
from dstransformer.model import Bundle


class Anything:
    """The values of a setting of which a format holds all, or that does not concern it."""

    def __contains__(self, value: object) -> bool:
        return True


ANY = Anything()

#: For each setting the values that a format holds.
Holds = Mapping[str, Collection[object] | Anything]

#: The settings of ``model`` that every format holds: sizes, and what only training reads.
SIZES: Holds = dict.fromkeys((
    "num_layers", "encoder_layers", "decoder_layers", "d_model", "d_ff", "dropout", "attention_dropout",
    "activation_dropout", "norm_epsilon", "max_positions", "vocab_multiple",
), ANY)  # fmt: skip


def check_bundle(bundle: Bundle, holds: Holds, what: str, advice: str) -> None:
    """Refuse a bundle that a format does not hold.

    Args:
        bundle: The bundle.
        holds: What the format holds, by the settings of ``model``.
        what: The format, for the message: ``a MarianMTModel``.
        advice: What to do instead, for the message.

    Raises:
        DataError: A setting has another value, or the bundle is a parser: other tools lack its constraint.
    """
    bundle.check_translates(
        "its outputs are trees only under the constraint of `dst parse`, which other tools lack; export a translation "
        "model"
    )
    check_settings(bundle.model, holds, f"{bundle.path}: model.", what, f"; {advice}")


def check_settings(
    settings: Iterable[tuple[str, object]], holds: Holds, begin: str, what: str, advice: str = ""
) -> None:
    """Refuse settings that a format, or a bundle, does not hold.

    Args:
        settings: Each setting and its value.
        holds: What it holds.
        begin: What stands before the name of the setting in the message.
        what: What does not hold it, for the message.
        advice: The end of the message.

    Raises:
        DataError: A setting has another value, or is not in the table.
    """
    for name, value in settings:
        if value not in (values := holds.get(name, ())):
            raise DataError(f"{begin}{name} is {shown(value)}, and {what} {_describe(values)}{advice}")


def _describe(values: Collection[object] | Anything) -> str:
    if isinstance(values, range):
        return f"has {values.start} to {values.stop - 1}"
    return f"has {' or '.join(map(shown, values))}" if isinstance(values, Collection) and values else "does not know it"
