"""The tests between systems, against their formulas."""

from __future__ import annotations

import os
import random

import pytest

from dstransformer.errors import UserError
from dstransformer.evaluation.bleu import score_translations
from dstransformer.evaluation.significance import Test, compare

TEXT = "der Hund läuft über die grüne Wiese und bellt laut im Garten hinter dem alten Haus am Rand der Stadt"
WORDS = TEXT.split()
RNG = random.Random(5)
REFERENCES = [" ".join(RNG.choices(WORDS, k=9)) for _ in range(60)]


def noisy(share: float, seed: int) -> list[str]:
    """The references with a share of their words replaced."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) if rng.random() < share else word for word in text.split())
            for text in REFERENCES]  # fmt: skip


SYSTEMS = [("first", noisy(0.3, 1)), ("much better", noisy(0.05, 2)), ("as good", noisy(0.3, 12))]


@pytest.mark.parametrize(("test", "samples"), [("bootstrap", 300), ("randomisation", 500)])
def test_a_real_difference_is_significant_and_chance_is_not(test: str, samples: int) -> None:
    found = compare(SYSTEMS, REFERENCES, test, samples=samples)
    assert found.systems == ("first", "much better", "as good")
    assert set(found.differences) == {"bleu", "chrf", "ter"}
    for metric, systems in found.differences.items():
        assert systems[0].p_value is None
        assert systems[1].is_significant, metric
        assert systems[1].p_value == pytest.approx(1 / (samples + 1))
        assert not systems[2].is_significant, metric
        assert (systems[1].interval is None) == (test == "randomisation")
    for number, (_, translations) in enumerate(SYSTEMS):
        expected = score_translations(translations, REFERENCES, None).metrics
        assert {metric: found.differences[metric][number].score for metric in expected} == pytest.approx(expected)
    assert f"|{'bs' if test == 'bootstrap' else 'ar'}:{samples}|seed:12345|" in found.signatures["bleu"]
    assert f"{samples} {'resamples' if test == 'bootstrap' else 'trials'}, seed 12345" in found.describe()


def test_the_seed_decides_and_the_environment_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "none")
    close = [SYSTEMS[0], SYSTEMS[2]]
    one, again, other = (compare(close, REFERENCES, "bootstrap", samples=200, seed=seed) for seed in (7, 7, 8))
    assert one == again
    assert one.differences["bleu"][1].p_value != other.differences["bleu"][1].p_value
    assert os.environ["SACREBLEU_SEED"] == "none"


def test_bounds() -> None:
    for wrong, complaint in (({"samples": 0}, "--resamples 0: draw at least one"), ({"seed": 0}, "--seed 0: give")):
        with pytest.raises(UserError, match=complaint):
            compare(SYSTEMS, REFERENCES, "bootstrap", **wrong)


@pytest.mark.parametrize("test", ["bootstrap", "randomisation"])
def test_the_same_translations_do_not_differ(test: Test) -> None:
    lines = ["a b c d e", "f g h i j", "a c e g i", "b d f h j"]
    found = compare([("one", lines), ("copy", list(lines)), ("other", lines[::-1])], lines, test, samples=50)
    for differences in found.differences.values():
        assert differences[0].p_value is None
        assert differences[1].p_value == 1.0
