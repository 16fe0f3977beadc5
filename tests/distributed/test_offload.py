"""Adam's moments in CPU memory: checkpoints go on with the fragment ``offload_optimizer`` and without it.

DeepSpeed compiles its CPU Adam once per installation, which takes minutes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.processes.forks import environment
from support.processes.launching import finish, forked, wait_until
from support.training.cases import case, final_weights, train_cases
from support.training.runs import TINY, trace

from dstransformer.training.checkpoints.format import read_checkpoint, verify_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.extended]

SAVED_AT, UPDATES = 3, 6
COMMON = [f"training.max_updates={UPDATES}", f"checkpoint.every_updates={SAVED_AT}", "model.dropout=0.1"]
LAYOUTS = {
    "plain": ["zero2", "fp32"],
    "offloaded": ["zero2", "fp32", "offload_optimizer"],
    "offloaded-zero3": ["zero3", "fp32", "offload_optimizer"],
}
RESUMED = {"plain": "offloaded", "offloaded": "plain", "offloaded-zero3": "offloaded"}


@pytest.fixture(scope="module")
def runs(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in each layout, and each layout going on from the middle of another."""
    out = tmp_path_factory.mktemp("offload")
    step = f"checkpoints/step-{SAVED_AT:08}"
    cases = [case(name, *COMMON, fragments=fragments) for name, fragments in LAYOUTS.items()]
    cases += [
        case(f"{target}-from-{source}", *COMMON, fragments=LAYOUTS[target], resume=f"{source}/{step}")
        for target, source in RESUMED.items()
    ]
    train_cases(out, toy_corpus, cases)
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_trains_as_on_the_device(runs: Path, layout: str) -> None:
    """DeepSpeed's Adam rounds otherwise than PyTorch's."""
    assert trace(runs / layout, "loss") == pytest.approx(trace(runs / "plain", "loss"), rel=1e-5)
    checkpoint = read_checkpoint(runs / layout / "checkpoints" / f"step-{SAVED_AT:08}")
    verify_checkpoint(checkpoint)
    assert len(list(checkpoint.shards.iterdir())) == 2


@pytest.mark.parametrize(("target", "source"), RESUMED.items())
def test_a_checkpoint_goes_on_with_it_and_without(runs: Path, target: str, source: str) -> None:
    resumed = runs / f"{target}-from-{source}"
    for key in ("loss", "grad_norm", "lr"):
        assert trace(resumed, key) == pytest.approx(trace(runs / source, key)[SAVED_AT:], rel=1e-4)
    weights, wanted = final_weights(resumed), final_weights(runs / source)
    for name, weight in wanted.items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-3, atol=1e-4)


def test_a_signal_while_deepspeed_compiles_ends_the_run_in_one_line(toy_corpus: Path, tmp_path: Path) -> None:
    operators, run = tmp_path / "operators", tmp_path / "run"
    options = ["train", "toy", "--corpus", str(toy_corpus), "--run", str(run), "--ds", *LAYOUTS["offloaded"]]
    variables = environment({"TORCH_EXTENSIONS_DIR": str(operators)})
    with forked(["-m", "dstransformer", *options, "--set", *TINY], variables) as program:
        wait_until(lambda: any(operators.glob("**/build.ninja")) or program.poll() is not None)
        program.terminate()
        _, errors = finish(program)
    assert program.returncode == 143, errors
    assert errors.splitlines()[-1].startswith("dst: ended by SIGTERM")
    assert "Traceback" not in errors
    assert not list(operators.glob("**/lock"))
    assert not (run / "checkpoints").exists()
