# glibc malloc settings for training on a CPU. Source this file before starting Python.
#
# By default glibc returns large freed blocks to the kernel at once, and the next update pays for that with page faults.
# These settings keep the pages. They do not affect GPU memory.
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-8589934592}
export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-17179869184}
export MALLOC_TOP_PAD_=${MALLOC_TOP_PAD_:-268435456}
