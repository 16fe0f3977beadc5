"""CUDA devices that compute nothing, for whole updates on a machine without one.

Tensors are PyTorch's fake ones: they have shapes, precisions and a device, and no data. What runs is the program
itself: the model, the choice of kernels for a device of compute capability 9.0, autograd, Adam, and DeepSpeed with its
CUDA accelerator; one process stands for rank 0 of a group of any size.

- ``device.cpp``: registers the device with PyTorch.
- ``device``: builds and loads that, and stands in for ``torch.cuda`` and the process group.
- ``record``: what an update asks of the device: operators and waits.
- ``updates``: runs updates in a fresh process, and hands back their record.
"""
