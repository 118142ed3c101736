"""Writes speaker.pte, a model that speaks as small as it can be, for tests in C++ that need one: python test/faults/make_speaker.py"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "python" / "llm"))


def main() -> None:
    import graft
    import speaker_models

    model, processor = speaker_models.make(tiny=True)
    graft.export_speaker(model, HERE / "speaker.pte", processor=processor, context=128)


if __name__ == "__main__":
    main()
