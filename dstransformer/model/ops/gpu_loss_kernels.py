"""The Triton kernels of cross-entropy and R-Drop: a program for each row of logits.

``pieces`` is ``units * STEP``, so that the compiler sees that rows are aligned to STEP elements, and reads several at
once.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def cross_entropy_kernel(
    logits, targets, sums, tokens, units, epsilon, scale,
    STEP: tl.constexpr, BLOCK: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """One pass for the sums, ``(2, tokens)``, and one for the gradient, which replaces the logits."""
    row = tl.program_id(0)
    pieces = units * STEP
    start = logits + row.to(tl.int64) * pieces
    if row < tokens:
        target = tl.load(targets + row)
        target_logit = tl.load(start + target).to(tl.float32)
        highest = float("-inf")
        exponentials = tl.zeros((BLOCK,), tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        for begin in range(0, pieces, BLOCK):
            columns = begin + tl.arange(0, BLOCK)
            mask = columns < pieces
            z = tl.load(start + columns, mask, other=float("-inf")).to(tl.float32)
            before, highest = highest, tl.maximum(highest, tl.max(z, axis=0))
            exponentials = exponentials * tl.exp(before - highest) + tl.exp(z - highest)
            total += tl.where(mask, z, 0.0)
        log_sum = highest + tl.log(tl.sum(exponentials, axis=0))
        nll = log_sum - target_logit
        mean_nll = log_sum - tl.sum(total, axis=0) / pieces
        tl.store(sums + row, (1.0 - epsilon) * nll + epsilon * mean_nll)
        tl.store(sums + tokens + row, nll)
        if GRADIENT:
            tl.debug_barrier()  # every thread has read the target's logit
            for begin in range(0, pieces, BLOCK):
                columns = begin + tl.arange(0, BLOCK)
                mask = columns < pieces
                z = tl.load(start + columns, mask, other=float("-inf")).to(tl.float32)
                grad = tl.exp(z - log_sum) - epsilon / pieces
                grad = tl.where(columns == target, grad + (epsilon - 1.0), grad)
                tl.store(start + columns, (grad * scale).to(logits.dtype.element_ty), mask)
    elif GRADIENT:
        for begin in range(0, pieces, BLOCK):
            columns = begin + tl.arange(0, BLOCK)
            tl.store(start + columns, tl.zeros((BLOCK,), logits.dtype.element_ty), columns < pieces)


@triton.jit(do_not_specialize=["rows"])
def r_drop_kernel(
    first, second, targets, sums, rows, units, epsilon, alpha, scale,
    STEP: tl.constexpr, BLOCK: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """The same for the rows of two passes of a token."""
    row = tl.program_id(0)
    pieces = units * STEP
    p_start = first + row.to(tl.int64) * pieces
    q_start = second + row.to(tl.int64) * pieces
    target = tl.load(targets + row)
    target_logits = tl.load(p_start + target).to(tl.float32) + tl.load(q_start + target).to(tl.float32)
    p_highest = float("-inf")
    q_highest = float("-inf")
    p_sum = tl.zeros((BLOCK,), tl.float32)
    q_sum = tl.zeros((BLOCK,), tl.float32)
    p_change = tl.zeros((BLOCK,), tl.float32)  # the sum of exp(p) (p - q), from which the divergence follows
    q_change = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, pieces, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        mask = columns < pieces
        p = tl.load(p_start + columns, mask, other=float("-inf")).to(tl.float32)
        q = tl.load(q_start + columns, mask, other=float("-inf")).to(tl.float32)
        change = tl.where(mask, p - q, 0.0)
        total += tl.where(mask, p + q, 0.0)
        before, p_highest = p_highest, tl.maximum(p_highest, tl.max(p, axis=0))
        rescale = tl.exp(before - p_highest)
        p = tl.exp(p - p_highest)
        p_sum = p_sum * rescale + p
        p_change = p_change * rescale + p * change
        before, q_highest = q_highest, tl.maximum(q_highest, tl.max(q, axis=0))
        rescale = tl.exp(before - q_highest)
        q = tl.exp(q - q_highest)
        q_sum = q_sum * rescale + q
        q_change = q_change * rescale - q * change
    p_total = tl.sum(p_sum, axis=0)
    q_total = tl.sum(q_sum, axis=0)
    p_log_sum = p_highest + tl.log(p_total)
    q_log_sum = q_highest + tl.log(q_total)
    kl_pq = tl.sum(p_change, axis=0) / p_total - p_log_sum + q_log_sum
    kl_qp = tl.sum(q_change, axis=0) / q_total - q_log_sum + p_log_sum
    nlls = p_log_sum + q_log_sum - target_logits
    mean_nlls = p_log_sum + q_log_sum - tl.sum(total, axis=0) / pieces
    loss = 0.5 * ((1.0 - epsilon) * nlls + epsilon * mean_nlls) + 0.25 * alpha * (kl_pq + kl_qp)
    tl.store(sums + row, loss)
    tl.store(sums + rows + row, 0.5 * nlls)
    if GRADIENT:
        tl.debug_barrier()  # every thread has read the target's logits
        _r_drop_gradients(
            p_start, q_start, target, p_log_sum, q_log_sum, kl_pq, kl_qp, pieces, epsilon, 0.5 * scale,
            0.25 * alpha * scale, BLOCK,
        )  # fmt: skip


@triton.jit
def _r_drop_gradients(
    p_start, q_start, target, p_log_sum, q_log_sum, kl_pq, kl_qp, pieces, epsilon, scale, weight, BLOCK: tl.constexpr
):
    for begin in range(0, pieces, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        mask = columns < pieces
        log_p = tl.load(p_start + columns, mask, other=0.0).to(tl.float32) - p_log_sum
        log_q = tl.load(q_start + columns, mask, other=0.0).to(tl.float32) - q_log_sum
        p, q, ratio = tl.exp(log_p), tl.exp(log_q), log_p - log_q
        smoothed = epsilon / pieces + tl.where(columns == target, 1.0 - epsilon, 0.0)
        p_grad = scale * (p - smoothed) + weight * (p * (ratio - kl_pq) + p - q)
        q_grad = scale * (q - smoothed) + weight * (q * (-ratio - kl_qp) + q - p)
        tl.store(p_start + columns, p_grad.to(p_start.dtype.element_ty), mask)
        tl.store(q_start + columns, q_grad.to(q_start.dtype.element_ty), mask)
