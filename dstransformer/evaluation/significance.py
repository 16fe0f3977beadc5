"""Whether score differences between systems are statistically significant: sacrebleu's paired tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from dstransformer.errors import UserError
from dstransformer.evaluation.bleu import bleu_metric, ter_metric

#: A paired test: bootstrap resampling (Koehn, 2004), or approximate randomisation (Riezler and Maxwell, 2005).
Test = Literal["bootstrap", "randomisation"]

#: sacrebleu's name of each test, and how many samples it draws by default.
_TESTS = {"bootstrap": ("bs", 1000), "randomisation": ("ar", 10000)}

#: sacrebleu's own default.
DEFAULT_SEED = 12345

#: Differences with a smaller p-value are marked as significant.
SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """A system compared with the baseline, in one metric.

    Attributes:
        score: The score of the system.
        p_value: Probability of a difference this large from the baseline by chance; None for the baseline itself.
        mean: Mean score of the resamples; None for approximate randomisation.
        interval: Half the width of the 95% confidence interval; None for approximate randomisation.
    """

    score: float
    p_value: float | None
    mean: float | None
    interval: float | None

    @property
    def is_significant(self) -> bool:
        """Whether the p-value is below :data:`SIGNIFICANCE_LEVEL`."""
        return self.p_value is not None and self.p_value < SIGNIFICANCE_LEVEL


@dataclass(frozen=True)
class Comparison:
    """The result of a test.

    Attributes:
        test: The test.
        samples: Number of resamples, or of trials.
        seed: The seed of the random numbers.
        systems: Names of the systems, the baseline first.
        differences: By metric (``bleu``, ``chrf``, ``ter``), for each system.
        signatures: By metric, with test and seed.
    """

    test: Test
    samples: int
    seed: int
    systems: tuple[str, ...]
    differences: Mapping[str, tuple[Difference, ...]]
    signatures: Mapping[str, str]

    def describe(self) -> str:
        """A footnote for a table."""
        names = {"bootstrap": "paired bootstrap resampling", "randomisation": "paired approximate randomisation"}
        draws = {"bootstrap": "resamples", "randomisation": "trials"}[self.test]
        interval = "; ± half of the 95% interval" if self.test == "bootstrap" else ""
        return (
            f"* p < {SIGNIFICANCE_LEVEL} against {self.systems[0]}: {names[self.test]}, {self.samples:,} {draws}, "
            f"seed {self.seed}{interval}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        systems = [
            {"system": name} | {metric: vars(found[number]) for metric, found in self.differences.items()}
            for number, name in enumerate(self.systems)
        ]
        return {
            "test": self.test,
            "samples": self.samples,
            "seed": self.seed,
            "baseline": self.systems[0],
            "systems": systems,
            "signatures": dict(self.signatures),
        }


def check_samples(test: Test, samples: int | None, seed: int) -> int:
    """The number of samples of a test, see :func:`compare`.

    Raises:
        UserError: ``samples`` or ``seed`` is not positive.
    """
    default = _TESTS[test][1]
    drawn = default if samples is None else samples
    if drawn < 1:
        raise UserError(f"--resamples {drawn}: draw at least one; {default:,} are usual for {test}")
    if seed < 1:
        raise UserError(f"--seed {seed}: give a positive whole number")
    return drawn


def compare(
    systems: Sequence[tuple[str, Sequence[str]]],
    references: Sequence[str],
    test: Test,
    *,
    tokenize: str = "13a",
    asian: bool = False,
    samples: int | None = None,
    seed: int = DEFAULT_SEED,
) -> Comparison:
    """Test each system against the first one, by BLEU, chrF and TER.

    Args:
        systems: Name and translations of each, the baseline first; at least two.
        references: The references.
        test: The test.
        tokenize: The tokenizer of BLEU.
        asian: Whether TER divides text into characters.
        samples: Number of resamples or trials; None for 1,000 resamples or 10,000 trials.
        seed: Seed of the random numbers; the same seed gives the same result.

    Raises:
        UserError: ``samples`` or ``seed`` is not positive.
    """
    drawn = check_samples(test, samples, seed)
    metrics = {"bleu": bleu_metric(tokenize), "chrf": CHRF(), "ter": ter_metric(asian=asian)}
    with _seeded(seed):
        signatures, results = PairedTest(
            [(system, list(translations)) for system, translations in systems],
            metrics,
            [list(references)],
            test_type=_TESTS[test][0],
            n_samples=drawn,
        )()
    baseline = list(systems[0][1])
    same = [list(translations) == baseline for _, translations in systems]
    by_key = dict(zip((key for key in results if key != "System"), metrics, strict=True))  # sacrebleu renames them
    differences = {
        metric: tuple(
            Difference(
                float(result.score),
                # sacrebleu takes the difference of 0 of equal translations for an extreme one
                1.0 if equal and result.p_value is not None else _to_float(result.p_value),
                _to_float(result.mean),
                _to_float(result.ci),
            )
            for result, equal in zip(results[key], same, strict=True)
            if not isinstance(result, str)  # only names are
        )
        for key, metric in by_key.items()
    }
    return Comparison(
        test,
        drawn,
        seed,
        tuple(system for system, _ in systems),
        differences,
        {metric: str(signatures[key]) for key, metric in by_key.items()},
    )


def _to_float(value: float | None) -> float | None:
    return None if value is None else float(value)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Set sacrebleu's seed, which it reads from the environment."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
