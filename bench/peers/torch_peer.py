"""What the peers that take and return torch tensors share."""

from __future__ import annotations

from typing import Any

import numpy as np

from peers import Peer


class TorchPeer(Peer):
    packages = ("torch",)

    def import_runtime(self) -> None:
        import torch  # noqa: F401

    def bind(self, arrays: list[np.ndarray]) -> Any:
        import torch

        return [torch.from_numpy(array) for array in arrays]

    def result(self, output: Any) -> np.ndarray:
        return output.numpy()
