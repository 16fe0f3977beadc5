"""The Triton kernels of attention within short sentences: a program for each sentence and head, in blocks of tokens.

A block holds BLOCK tokens of ``BLOCK_K`` or ``BLOCK_V`` numbers, the widths of a head rounded up to a power of two.
What lies beyond the sentence or the width is read as 0 and never written. ``q``, ``k`` and ``v`` may be parts of the
same rows: Q_ROW and K_ROW are the widths of whole rows.
"""

import triton
import triton.language as tl


@triton.jit
def _places(ROW: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Where the numbers of a block are, relative to its first."""
    return tl.arange(0, BLOCK)[:, None] * ROW + tl.arange(0, WIDTH)[None, :]


@triton.jit
def _inside(begin, count, USED: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Which numbers of a block that begins with this token belong to a sentence of ``count`` tokens."""
    return (begin + tl.arange(0, BLOCK)[:, None] < count) & (tl.arange(0, WIDTH)[None, :] < USED)


@triton.jit
def _load(first, begin, count, ROW: tl.constexpr, USED: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    places = first + begin * ROW + _places(ROW, BLOCK, WIDTH)
    return tl.load(places, _inside(begin, count, USED, BLOCK, WIDTH), other=0.0)


@triton.jit
def _store(first, x, begin, count, ROW: tl.constexpr, USED: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    places = first + begin * ROW + _places(ROW, BLOCK, WIDTH)
    tl.store(places, x.to(first.dtype.element_ty), _inside(begin, count, USED, BLOCK, WIDTH))


@triton.jit
def _product(a, b):
    """A matrix product, summed in fp32; of fp32, without TF32."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _scores(q, k, begin, key_begin, keys, scale, CAUSAL: tl.constexpr, BLOCK: tl.constexpr):
    """The scaled scores of a block of queries and one of keys, minus infinity where a key is not seen."""
    key_places = key_begin + tl.arange(0, BLOCK)[None, :]
    seen = key_places < keys
    if CAUSAL:
        seen = seen & (key_places <= begin + tl.arange(0, BLOCK)[:, None])
    return tl.where(seen, _product(q, tl.trans(k)) * scale, float("-inf"))


@triton.jit
def _score_gradients(
    q, k, v, grad, delta, log_sums, begin, key_begin, keys, scale, CAUSAL: tl.constexpr, BLOCK: tl.constexpr
):
    """The weights of attention, and the gradients of the scores before they are scaled, in the precision of ``q``."""
    weights = tl.exp(_scores(q, k, begin, key_begin, keys, scale, CAUSAL, BLOCK) - log_sums[:, None])
    changes = weights * (_product(grad, tl.trans(v)) - delta[:, None])
    return weights.to(q.dtype), changes.to(q.dtype)


@triton.jit(do_not_specialize=["rows"])
def attention_kernel(
    q, k, v, cu, key_cu, out, log_sums, rows, scale,
    HEADS: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr, Q_ROW: tl.constexpr, K_ROW: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The results, and the logarithms of the sums of the softmax of each head and row, ``(heads, rows)``."""
    sentence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start, key_start = tl.load(cu + sentence), tl.load(key_cu + sentence)
    count, keys = tl.load(cu + sentence + 1) - start, tl.load(key_cu + sentence + 1) - key_start
    start, key_start = start.to(tl.int64), key_start.to(tl.int64)
    q += start * Q_ROW + head * D_K
    k += key_start * K_ROW + head * D_K
    v += key_start * K_ROW + head * D_V
    out += start * (HEADS * D_V) + head * D_V
    log_sums += head.to(tl.int64) * rows + start
    for begin in range(0, count, BLOCK):
        queries = _load(q, begin, count, Q_ROW, D_K, BLOCK, BLOCK_K)
        highest = tl.full((BLOCK,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        result = tl.zeros((BLOCK, BLOCK_V), tl.float32)
        for key_begin in range(0, tl.minimum(begin + BLOCK, keys) if CAUSAL else keys, BLOCK):
            block_k = _load(k, key_begin, keys, K_ROW, D_K, BLOCK, BLOCK_K)
            block_v = _load(v, key_begin, keys, K_ROW, D_V, BLOCK, BLOCK_V)
            scores = _scores(queries, block_k, begin, key_begin, keys, scale, CAUSAL, BLOCK)
            before, highest = highest, tl.maximum(highest, tl.max(scores, axis=1))
            weights = tl.exp(scores - highest[:, None])
            rescale = tl.exp(before - highest)
            total = total * rescale + tl.sum(weights, axis=1)
            result = result * rescale[:, None] + _product(weights.to(block_v.dtype), block_v)
        _store(out, result / total[:, None], begin, count, HEADS * D_V, D_V, BLOCK, BLOCK_V)
        places = begin + tl.arange(0, BLOCK)
        tl.store(log_sums + places, highest + tl.log(total), places < count)


@triton.jit(do_not_specialize=["rows"])
def attention_backward_kernel(
    grad, q, k, v, out, log_sums, cu, key_cu, grad_q, grad_k, grad_v, rows, scale,
    HEADS: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr, Q_ROW: tl.constexpr, K_ROW: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The gradients of keys and values, a block of them at a time, and those of queries.

    Where all keys are in one block, that pass gives the gradients of queries too; else another one does.
    """
    sentence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start, key_start = tl.load(cu + sentence), tl.load(key_cu + sentence)
    count, keys = tl.load(cu + sentence + 1) - start, tl.load(key_cu + sentence + 1) - key_start
    start, key_start = start.to(tl.int64), key_start.to(tl.int64)
    q += start * Q_ROW + head * D_K
    grad_q += start * Q_ROW + head * D_K
    k += key_start * K_ROW + head * D_K
    grad_k += key_start * K_ROW + head * D_K
    v += key_start * K_ROW + head * D_V
    grad_v += key_start * K_ROW + head * D_V
    out += start * (HEADS * D_V) + head * D_V
    grad += start * (HEADS * D_V) + head * D_V
    log_sums += head.to(tl.int64) * rows + start
    for key_begin in range(0, keys, BLOCK):
        block_k = _load(k, key_begin, keys, K_ROW, D_K, BLOCK, BLOCK_K)
        block_v = _load(v, key_begin, keys, K_ROW, D_V, BLOCK, BLOCK_V)
        sum_k = tl.zeros((BLOCK, BLOCK_K), tl.float32)
        sum_v = tl.zeros((BLOCK, BLOCK_V), tl.float32)
        for begin in range(key_begin if CAUSAL else 0, count, BLOCK):
            queries, grads, delta, sums = _load_queries(
                q, grad, out, log_sums, begin, count, HEADS, D_K, D_V, Q_ROW, BLOCK, BLOCK_K, BLOCK_V
            )
            weights, changes = _score_gradients(
                queries, block_k, block_v, grads, delta, sums, begin, key_begin, keys, scale, CAUSAL, BLOCK
            )
            sum_v += _product(tl.trans(weights), grads)
            sum_k += _product(tl.trans(changes), queries)
            if keys <= BLOCK:
                _store(grad_q, _product(changes, block_k) * scale, begin, count, Q_ROW, D_K, BLOCK, BLOCK_K)
        _store(grad_k, sum_k * scale, key_begin, keys, K_ROW, D_K, BLOCK, BLOCK_K)
        _store(grad_v, sum_v, key_begin, keys, K_ROW, D_V, BLOCK, BLOCK_V)
    if keys > BLOCK:
        for begin in range(0, count, BLOCK):
            queries, grads, delta, sums = _load_queries(
                q, grad, out, log_sums, begin, count, HEADS, D_K, D_V, Q_ROW, BLOCK, BLOCK_K, BLOCK_V
            )
            sum_q = tl.zeros((BLOCK, BLOCK_K), tl.float32)
            for key_begin in range(0, tl.minimum(begin + BLOCK, keys) if CAUSAL else keys, BLOCK):
                block_k = _load(k, key_begin, keys, K_ROW, D_K, BLOCK, BLOCK_K)
                block_v = _load(v, key_begin, keys, K_ROW, D_V, BLOCK, BLOCK_V)
                _, changes = _score_gradients(
                    queries, block_k, block_v, grads, delta, sums, begin, key_begin, keys, scale, CAUSAL, BLOCK
                )
                sum_q += _product(changes, block_k)
            _store(grad_q, sum_q * scale, begin, count, Q_ROW, D_K, BLOCK, BLOCK_K)


@triton.jit
def _load_queries(
    q, grad, out, log_sums, begin, count,
    HEADS: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr, Q_ROW: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """A block of queries, of the gradients of their results, of the products of both, and of the saved logarithms."""
    queries = _load(q, begin, count, Q_ROW, D_K, BLOCK, BLOCK_K)
    grads = _load(grad, begin, count, HEADS * D_V, D_V, BLOCK, BLOCK_V)
    results = _load(out, begin, count, HEADS * D_V, D_V, BLOCK, BLOCK_V)
    delta = tl.sum(grads.to(tl.float32) * results.to(tl.float32), axis=1)
    places = begin + tl.arange(0, BLOCK)
    return queries, grads, delta, tl.load(log_sums + places, places < count, other=0.0)
