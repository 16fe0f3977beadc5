"""Data sheets of GPUs, what work on them costs, and the time that predictions give it."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Seconds of the host per operator in eager mode, autograd and Python included.
LAUNCH_SECONDS = 10e-6

#: Seconds of the host per operator that launches a Triton kernel, which is written in Python.
TRITON_SECONDS = 50e-6

#: Seconds that the device is idle after the host has waited for it, until the host is ahead again.
WAIT_SECONDS = 100e-6


@dataclass(frozen=True)
class Sheet:
    """A device's data sheet, and the shares of it that programs reach.

    The shares and the gap are assumptions, from what others report of large matrix products and of copies: the best of
    them here, the worst in :meth:`cautious`.

    Attributes:
        name: The device.
        products: Peak FLOP/s of dense bf16 products.
        bandwidth: Bytes per second of device memory.
        link: Bytes per second to the other GPUs of a node, in each direction.
        product_share: Share of ``products`` that the products of a Transformer reach.
        bandwidth_share: Share of ``bandwidth`` that operators limited by memory reach.
        link_share: Share of ``link`` that an all-reduce reaches.
        gap: Seconds between two kernels.
    """

    name: str
    products: float
    bandwidth: float
    link: float
    product_share: float
    bandwidth_share: float = 0.8
    link_share: float = 0.75
    gap: float = 0.0

    def cautious(self) -> Sheet:
        """The same device, of which programs reach less: the factors of base's products are short, 512 wide."""
        return replace(self, product_share=0.75 * self.product_share, bandwidth_share=0.65, gap=2e-6)


SHEETS = {
    "h100": Sheet("H100 SXM", 989e12, 3.35e12, 450e9, product_share=0.6),
    "h200": Sheet("H200 SXM", 989e12, 4.8e12, 450e9, product_share=0.6),
    "a100": Sheet("A100 SXM 80 GB", 312e12, 2.04e12, 300e9, product_share=0.7),
}


@dataclass(frozen=True)
class UpdateTime:
    """The predicted time of an update, or of other work, by term, in seconds.

    Attributes:
        products: Of the device, in matrix products.
        memory: Of the device, in all other operators.
        host: Of the host, to launch everything.
        waits: Of the device, idle after waits.
        links: Between the GPUs.
    """

    products: float
    memory: float
    host: float
    waits: float
    links: float

    @property
    def device(self) -> float:
        """Seconds in which the device computes."""
        return self.products + self.memory

    @property
    def total(self) -> float:
        """Host and device work side by side, so the longer of the two counts; the rest comes on top."""
        return max(self.device, self.host) + self.waits + self.links
