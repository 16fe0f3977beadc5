"""The Triton kernel of the best pieces: a program for each row of logits.

``pieces`` is ``units * STEP``, so that the compiler sees that rows are aligned to STEP elements, and reads several at
once.
"""

import triton
import triton.language as tl

#: Less than the rank of any logit.
NONE = tl.constexpr(-(2**31))

#: The ranks of infinity and of NaN, which are bits of theirs; NaN has others too.
INFINITY, NAN = tl.constexpr(0x7F800000), tl.constexpr(0x7FFFFFFF)


@triton.jit
def _flip(bits):
    """The bits of fp32 as integers in the order of the numbers, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit(do_not_specialize=["first", "end", "count"])
def best_pieces_kernel(
    logits, best, chosen, log_sums, first, end, units, count,
    STEP: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """One pass over the row. The best so far lie in slots; a place is how many of them are better."""
    row = tl.program_id(0).to(tl.int64)
    pieces = units * STEP
    highest = float("-inf")
    exponentials = tl.zeros((BLOCK,), tl.float32)
    ranks = tl.full((SLOTS,), NONE, tl.int32)
    winners = tl.zeros((SLOTS,), tl.int32)
    places = tl.arange(0, SLOTS)
    lowest = tl.min(ranks, axis=0)
    for begin in range(0, pieces, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        z = tl.load(logits + row * pieces + columns, columns < pieces, other=float("-inf")).to(tl.float32)
        before, highest = highest, tl.maximum(highest, tl.max(z, axis=0))
        shift = tl.where(highest == float("-inf"), 0.0, highest)  # as long as all are minus infinity
        exponentials = exponentials * tl.exp(before - shift) + tl.exp(z - shift)
        bits = z.to(tl.int32, bitcast=True)
        rank = tl.where((bits & NAN) > INFINITY, NAN, _flip(bits))
        rank = tl.where((columns >= first) & (columns < end), rank, NONE)
        top = tl.max(rank, axis=0)
        while top > lowest:
            piece = tl.min(tl.where(rank == top, columns, pieces), axis=0)
            place = tl.sum((ranks >= top).to(tl.int32), axis=0)
            places += (places >= place).to(tl.int32)
            lost = places == SLOTS
            ranks = tl.where(lost, top, ranks)
            winners = tl.where(lost, piece, winners)
            places = tl.where(lost, place, places)
            lowest = tl.min(ranks, axis=0)
            rank = tl.where(columns == piece, NONE, rank)
            top = tl.max(rank, axis=0)
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    tl.store(log_sums + row, shift + tl.log(tl.sum(exponentials, axis=0)))
    tl.store(best + row * count + places, _flip(ranks).to(tl.float32, bitcast=True), places < count)
    tl.store(chosen + row * count + places, winners.to(tl.int64), places < count)
