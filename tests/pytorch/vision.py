"""Networks of torchvision, whose compiled operators fit one build of PyTorch and are not needed here."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType

import torch

_DECLARED: list[torch.library.Library] = []


def vision_models() -> ModuleType:
    """Returns `torchvision.models`.

    A build of torchvision for GPUs does not load its operators beside a build of PyTorch for CPUs, and then
    fails where it registers shapes for two of them; so these are declared, without an implementation.
    """
    if not _DECLARED and not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Failed to load image Python extension")
        return importlib.import_module("torchvision.models")
