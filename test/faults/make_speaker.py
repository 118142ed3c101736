"""Writes speaker.tar.xz: speaker.pte, a small model that speaks, for tests in C++: python test/faults/make_speaker.py"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "python" / "llm"))


def main() -> None:
    import graft
    import speaker_models

    model, processor = speaker_models.make(tiny=True)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(HERE / "speaker.tar.xz", "w:xz") as archive:
        package = Path(folder) / "speaker.pte"
        graft.export_speaker(model, package, processor=processor, context=128)
        archive.add(package, package.name)


if __name__ == "__main__":
    main()
