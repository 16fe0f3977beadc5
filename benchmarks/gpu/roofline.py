"""The time that counted work takes on a device that is not there: a roofline, whose every term is stated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.gpu.sheets import LAUNCH_SECONDS, TRITON_SECONDS, WAIT_SECONDS, Sheet, UpdateTime


class Operator(NamedTuple):
    """Calls of an operator.

    Attributes:
        name: Its name in ATen.
        dtype: The precision of its result.
        calls: Number of calls.
        moved: Bytes that one call reads and writes.
        flops: Operations of one call, if it is a matrix product.
    """

    name: str
    dtype: str
    calls: int
    moved: int
    flops: int


#: The shortest time of a kernel.
KERNEL_SECONDS = 2e-6

#: Operators that launch Triton kernels.
TRITON = ("best_pieces", "cross_entropy_", "r_drop_cross_entropy_", "residual_norm", "residual_norm_backward")


@dataclass(frozen=True)
class Work:
    """What some work asks of a device and its host.

    Attributes:
        operators: The operators.
        waits: How often the host waits for the device, on average.
        attention_flops: Operations of the products inside attention, which the operators do not state.
        attention_bytes: Bytes that attention moves beside what it is given and returns.
        reduced_bytes: Bytes that each GPU sends to the others.
        launches: Launches by the host, if it does not launch every operator by itself.
    """

    operators: Sequence[Operator]
    waits: float
    attention_flops: float = 0.0
    attention_bytes: float = 0.0
    reduced_bytes: float = 0.0
    launches: int | None = None

    @property
    def host_launches(self) -> int:
        """Launches by the host."""
        return sum(operator.calls for operator in self.operators) if self.launches is None else self.launches

    @property
    def flops(self) -> float:
        """Operations of all products."""
        return sum(operator.calls * operator.flops for operator in self.operators) + self.attention_flops

    @property
    def moved(self) -> float:
        """Bytes that operators without products move."""
        moved = sum(operator.calls * operator.moved for operator in self.operators if not operator.flops)
        return moved + self.attention_bytes


def predict(work: Work, sheet: Sheet) -> UpdateTime:
    """Predict the time of some work: each operator takes the longer of its operations and its bytes."""
    flops_rate, byte_rate = sheet.products * sheet.product_share, sheet.bandwidth * sheet.bandwidth_share
    products, memory, host = work.attention_flops / flops_rate, work.attention_bytes / byte_rate, 0.0
    for operator in work.operators:
        bound = max(operator.flops / flops_rate, operator.moved / byte_rate, KERNEL_SECONDS)
        if operator.flops:
            products += operator.calls * bound
        else:
            memory += operator.calls * bound
        if operator.name in TRITON:
            host += operator.calls * (TRITON_SECONDS - LAUNCH_SECONDS)
        memory += operator.calls * sheet.gap
    return UpdateTime(
        products=products,
        memory=memory,
        host=host + work.host_launches * LAUNCH_SECONDS,
        waits=work.waits * WAIT_SECONDS,
        links=work.reduced_bytes / (sheet.link * sheet.link_share),
    )
