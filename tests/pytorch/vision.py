"""Networks of torchvision, whose compiled operators fit one build of PyTorch and are not needed here."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

_DECLARED: list[torch.library.Library] = []


def vision_models() -> ModuleType:
    """Returns `torchvision.models`; skips the test where it is not installed.

    A build of torchvision for GPUs does not load its operators beside a build of PyTorch for CPUs, and then
    fails where it registers shapes for two of them; so these are declared, without an implementation.
    """
    if not _DECLARED and not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)
    models: ModuleType = pytest.importorskip("torchvision.models")  # which ignores the warnings of its import
    return models
