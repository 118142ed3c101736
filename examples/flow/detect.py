"""Detector, cropper and classifier as one flow: two models with a function between them.

    python examples/flow/detect.py [--images N]

Exports two small networks of random weights, runs images through a flow and compares with the same stages called one
after another. The cropper cuts out as many boxes as the detector is sure of, so an image gives any number of crops; two
workers classify them while the detector has the next image.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn

import graft

SIZE, CROP, CELLS, CLASSES = 64, 16, 8, 5


class Detector(nn.Module):
    """Image [3, 64, 64] to the scores [64] and the top left corners [64, 2] of boxes, one for each cell of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()
        )
        self.head = nn.Conv2d(32, 3, 3, stride=2, padding=1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        score, x, y = self.head(self.body(image[None]))[0]
        corner = torch.stack([y, x], -1).sigmoid() * (SIZE - CROP)
        return score.flatten(), corner.reshape(CELLS * CELLS, 2)


class Classifier(nn.Module):
    """Crop [3, 16, 16] to logits [5]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(32, CLASSES)

    def forward(self, crop: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(crop[None]).mean((2, 3)))[0]


def crop(image: torch.Tensor, scores: torch.Tensor, corners: torch.Tensor):
    """The crops of boxes with a score above two deviations of the image's."""
    for i in (scores > scores.mean() + 2 * scores.std()).nonzero()[:, 0].tolist():
        y, x = corners[i].round().long().tolist()
        yield image[:, y : y + CROP, x : x + CROP].contiguous()


def make_flow(detector: graft.Model, classifiers: list[graft.Model]) -> graft.Flow:
    return graft.Flow(
        inputs=["image"],
        stages={
            "detect": detector,
            "crop": graft.FlowStage(
                function=crop,
                inputs=["image", "scores", "corners"],
                outputs={"crop": (torch.float32, (3, CROP, CROP))},
                fan_out=True,
            ),
            "classify": classifiers,
        },
        connections={
            "detect.image": "image",
            "crop.image": "image",
            "crop.scores": "detect.0",
            "crop.corners": "detect.1",
            "classify.crop": "crop.crop",
        },
        outputs=["crop.crop", "classify.0"],
    )


def by_hand(detector, classifier, image: torch.Tensor) -> list[torch.Tensor]:
    """The logits of each crop, one stage after another. The models may be graft's or eager."""
    return [classifier(part) for part in crop(image, *detector(image))]


def modules() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return Detector().eval(), Classifier().eval()


def models(folder: Path) -> tuple[graft.Model, graft.Model]:
    detector, classifier = modules()
    paths = (
        graft.export(detector, (torch.zeros(3, SIZE, SIZE),), path=folder / "detector.pte"),
        graft.export(classifier, (torch.zeros(3, CROP, CROP),), path=folder / "classifier.pte"),
    )
    first, second = (graft.load(path, threads=1) for path in paths)
    return first, second


def images(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(3, SIZE, SIZE, generator=generator) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=20)
    given = images(parser.parse_args().images)
    with tempfile.TemporaryDirectory() as folder:
        detector, classifier = models(Path(folder))
        with make_flow(detector.fork(), [classifier.fork(), classifier.fork()]) as flow:
            runs = [flow.submit(image) for image in given]
            results = [run.result() for run in runs]
        found = 0
        for image, (_, logits) in zip(given, results, strict=True):
            expected = by_hand(detector, classifier, image)
            assert len(logits) == len(expected)
            assert all(torch.equal(a, b) for a, b in zip(logits, expected, strict=True))
            found += len(logits)
        print(f"{len(given)} images, {found} crops: the same as the stages one after another")


if __name__ == "__main__":
    main()
