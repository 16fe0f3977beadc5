"""The Triton kernels of ``LayerNorm(x + Dropout(y))``: a program holds a row as ``(GROUPS, 8)`` elements.

``width`` is ``units * STEP``, so that the compiler sees that rows are aligned to STEP elements, and reads several at
once.
"""

import triton
import triton.language as tl


@triton.jit
def _factors(seed, row, level, scale, GROUPS: tl.constexpr):
    """The factors of dropout of a row, ``(GROUPS, 8)``: 0 or ``scale``, each from 16 bits of Philox."""
    numbers = row * GROUPS + tl.arange(0, GROUPS)
    a, b, c, d = tl.randint4x(tl.load(seed), numbers)
    lanes = tl.arange(0, 8)[None, :]
    first = tl.where(lanes < 2, a[:, None], b[:, None])
    last = tl.where(lanes < 6, c[:, None], d[:, None])
    words = tl.where(lanes < 4, first, last).to(tl.uint32, bitcast=True)
    bits = (words >> ((lanes % 2) * 16).to(tl.uint32)) & 0xFFFF
    return tl.where(bits.to(tl.int32) >= level, scale, 0.0)


@triton.jit(do_not_specialize=["rows"])
def residual_norm_kernel(
    x, y, gain, bias, seed, out, summed, statistics, rows, units, eps, level, scale,
    STEP: tl.constexpr, DROP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """A program for each row; ``statistics`` are the means and inverse deviations of all rows."""
    row = tl.program_id(0)
    width = units * STEP
    columns = tl.arange(0, GROUPS)[:, None] * 8 + tl.arange(0, 8)[None, :]
    mask = columns < width
    places = row.to(tl.int64) * width + columns
    added = tl.load(y + places, mask, other=0.0).to(tl.float32)
    if DROP:
        added *= _factors(seed, row, level, scale, GROUPS)
    total = (tl.load(x + places, mask, other=0.0).to(tl.float32) + added).to(summed.dtype.element_ty)
    tl.store(summed + places, total, mask)
    total = total.to(tl.float32)
    mean = tl.sum(tl.sum(total, axis=1), axis=0) / width
    centred = tl.where(mask, total - mean, 0.0)
    variance = tl.sum(tl.sum(centred * centred, axis=1), axis=0) / width
    inverse = 1.0 / tl.sqrt(variance + eps)
    tl.store(statistics + row, mean)
    tl.store(statistics + rows + row, inverse)
    gains = tl.load(gain + columns, mask, other=0.0).to(tl.float32)
    biases = tl.load(bias + columns, mask, other=0.0).to(tl.float32)
    tl.store(out + places, (centred * inverse * gains + biases).to(out.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["rows"])
def residual_norm_backward_kernel(
    grad, summed, gain, seed, statistics, grad_x, grad_y, partial, rows, units, level, scale,
    STEP: tl.constexpr, DROP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Every program takes each of its rows, and writes the gradients of gain and bias that it has summed."""
    program = tl.program_id(0)
    width = units * STEP
    columns = tl.arange(0, GROUPS)[:, None] * 8 + tl.arange(0, 8)[None, :]
    mask = columns < width
    gains = tl.load(gain + columns, mask, other=0.0).to(tl.float32)
    grad_gain = tl.zeros((GROUPS, 8), tl.float32)
    grad_bias = tl.zeros((GROUPS, 8), tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        places = tl.cast(row, tl.int64) * width + columns
        g = tl.load(grad + places, mask, other=0.0).to(tl.float32)
        total = tl.load(summed + places, mask, other=0.0).to(tl.float32)
        mean = tl.load(statistics + row)
        inverse = tl.load(statistics + rows + row)
        normed = tl.where(mask, (total - mean) * inverse, 0.0)
        grad_gain += g * normed
        grad_bias += g
        g *= gains
        along_mean = tl.sum(tl.sum(g, axis=1), axis=0) / width
        along_normed = tl.sum(tl.sum(g * normed, axis=1), axis=0) / width
        g = inverse * (g - along_mean - normed * along_normed)
        tl.store(grad_x + places, g.to(grad_x.dtype.element_ty), mask)
        if DROP:
            g *= _factors(seed, row, level, scale, GROUPS)
            tl.store(grad_y + places, g.to(grad_y.dtype.element_ty), mask)
    sums = partial + tl.cast(program, tl.int64) * 2 * width + columns
    tl.store(sums, grad_gain, mask)
    tl.store(sums + width, grad_bias, mask)
