# Settings that PyTorch reads before it starts; source this before training on a CPU.
#
# glibc gives large freed blocks back to the kernel at once, and the next update pays for them with page faults. These
# keep the pages. They do nothing for memory on a GPU.
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-8589934592}
export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-17179869184}
export MALLOC_TOP_PAD_=${MALLOC_TOP_PAD_:-268435456}
