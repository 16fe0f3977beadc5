"""dstransformer: the Transformer of "Attention Is All You Need" (Vaswani et al., 2017), trained with DeepSpeed.

``__all__`` lists what Python programs import from here; ``docs/guide/python.md`` describes it. Each name loads its
module at first use (PEP 562), so ``import dstransformer`` loads nothing else and has no side effect.
"""

__version__ = "0.2.0"

__all__ = ["Corpus", "MarkupTranslator", "Parser", "TrainRequest", "Translator", "load_config", "open_bundle", "train"]

_MODULES = {
    "Corpus": "data",
    "MarkupTranslator": "extras.markup.translator",
    "Parser": "extras.parsing.parser",
    "TrainRequest": "training.experiment",
    "Translator": "decoding",
    "load_config": "config",
    "open_bundle": "model",
    "train": "training.run",
}

TYPE_CHECKING = False  # as in typing, which takes longer to import than all of this
if TYPE_CHECKING:
    from dstransformer.config import load_config
    from dstransformer.data import Corpus
    from dstransformer.decoding import Translator
    from dstransformer.extras.markup.translator import MarkupTranslator
    from dstransformer.extras.parsing.parser import Parser
    from dstransformer.model import open_bundle
    from dstransformer.training.experiment import TrainRequest
    from dstransformer.training.run import train
else:

    def __getattr__(name):
        """Load a public name."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
