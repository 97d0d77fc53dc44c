"""Whether a device has no memory left, however that is put."""

from __future__ import annotations

from contextlib import suppress

import torch

_SAID = ("out of memory", "STATUS_ALLOC_FAILED", "can't allocate memory")
_FOR_KERNELS = 1 << 30  # bytes that cuDNN needs to load its kernels, at most


def out_of_memory(error: Exception, device: str | torch.device) -> bool:
    """Whether the error says that the device has no memory left, as torch or as NVIDIA's libraries put it.

    cuDNN calls it an internal error if it cannot load its own kernels.
    """
    said = str(error)
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(words in said for words in _SAID):
        return True
    with suppress(RuntimeError, AssertionError, ValueError):  # nothing can be asked of a device that is broken
        return "CUDNN_STATUS_INTERNAL_ERROR" in said and torch.cuda.mem_get_info(device)[0] < _FOR_KERNELS
    return False
