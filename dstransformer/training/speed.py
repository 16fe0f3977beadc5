"""The time of an update on a GPU that is not there: a prediction from operations, bytes and launches.

Bytes and launches are closed formulas, fitted to updates of ``base`` and ``big`` that were counted on a faked device;
a test holds them beside those counts. They cover what :func:`dstransformer.training.estimate.peak_memory_bytes` covers,
in ZeRO stages 0 to 2 on the GPUs of a node.
"""

from __future__ import annotations

from dstransformer.config import Config, accumulation_steps
from dstransformer.model import activation_bytes
from dstransformer.model.ops.gpu_library import MIN_ELEMENTS
from dstransformer.training.devices import LAUNCH_SECONDS, TRITON_SECONDS, WAIT_SECONDS, Sheet, UpdateTime

#: Seconds that an operator takes on the device beyond its bytes, on average: the shortest kernel takes 2 µs.
_SHORT_SECONDS = 0.7e-6

#: GPUs of a node.
NODE_GPUS = 8


def predict_update(
    config: Config,
    stage: int,
    world_size: int,
    sheet: Sheet,
    *,
    parameters: int,
    rows: int,
    src_tokens: float,
    tgt_tokens: float,
    flops: float,
) -> UpdateTime | None:
    """Predict the time of an update in half precision.

    Args:
        config: The experiment.
        stage: Its ZeRO stage.
        world_size: Number of processes, each with a GPU.
        sheet: The device.
        parameters: Parameters of the model.
        rows: Rows of the softmax matrix.
        src_tokens: Source tokens of the update, of all processes.
        tgt_tokens: Target tokens of it.
        flops: Operations of it, see :func:`dstransformer.model.training_flops`.

    Returns:
        None in ZeRO stage 3, with Muon, or for more GPUs than a node has, whose network is not known.
    """
    if stage == 3 or world_size > NODE_GPUS or config.optimizer.name == "muon":
        return None
    steps = accumulation_steps(config.batch.micro_batch_count, world_size)
    src, tgt = round(src_tokens / world_size), round(tgt_tokens / world_size)
    encoder, decoder = config.model.encoder_depth, config.model.decoder_depth
    launches = _launches((2 * encoder + 3 * decoder) / 5, stage, world_size, steps)
    recomputed = 4 / 3 if config.training.activation_checkpointing else 1.0  # a forward pass more
    moved = _weight_bytes(stage, world_size, steps, parameters, rows * config.model.d_model)
    moved += recomputed * (5.3 * activation_bytes(config.model, src, tgt) + 4.65 * 2 * rows * tgt)
    if config.training.int8_weights:  # of each matrix, and of a shared embedding for each use
        launches += steps * 10 * (4 * encoder + 7 * decoder + 3)
        moved += steps * 40 * (parameters + 2 * rows * config.model.d_model)
    fused = min(src, tgt) // steps * config.model.d_model >= MIN_ELEMENTS
    kernels = steps * (4 * encoder + 6 * decoder + 7 if fused else 1)
    return UpdateTime(
        products=recomputed * flops / world_size / (sheet.products * sheet.product_share),
        memory=moved / (sheet.bandwidth * sheet.bandwidth_share) + launches * _SHORT_SECONDS,
        host=recomputed * launches * LAUNCH_SECONDS + kernels * (TRITON_SECONDS - LAUNCH_SECONDS),
        waits=(1 + steps if stage == 2 else 1) * WAIT_SECONDS,
        links=link_bytes(stage, world_size, steps, parameters) / (sheet.link * sheet.link_share),
    )


def link_bytes(stage: int, world_size: int, steps: int, parameters: int) -> float:
    """Bytes that a GPU sends to the others of its node in an update.

    Stages 0 and 1 reduce all gradients to all GPUs, which counts twice; stage 2 reduces those of each micro-batch to
    the GPU that needs them. Stages 1 and 2 gather the weights too.
    """
    times = (2, 3, steps + 1)[stage]
    return times * (world_size - 1) / world_size * 4 * parameters


def _launches(pairs: float, stage: int, world_size: int, steps: int) -> float:
    """Operators of an update: those of its micro-batches, and those of its end.

    ``pairs`` are pairs of an encoder layer with 2 sub-layers and a decoder layer with 3. One process in stages 1 and 2
    takes the norm of each gradient by itself.
    """
    end = 134 + 55 * pairs if stage and world_size == 1 else 60 + 10 * pairs
    again = (50 + 25 * pairs) * (steps - 1) if stage == 2 and world_size == 1 else 0
    return steps * (40 + 122 * pairs) + end + again


def _weight_bytes(stage: int, world_size: int, steps: int, parameters: int, matrix: int) -> float:
    """Bytes that move for the weights, their gradients and Adam: at the end of the update, and in micro-batches.

    Args:
        stage: ZeRO stage.
        world_size: Number of processes.
        steps: Micro-batches of a process.
        parameters: Parameters of the model.
        matrix: Those of the softmax matrix, whose gradients have several sources.
    """
    end = 64 * parameters + 31 * matrix
    if stage:
        end += round((75 / world_size - 7) * parameters)
    added = (10 if stage < 2 else 45) * parameters + 65 * matrix
    return end + (steps - 1) * added
