"""Writes ctc.tar.xz: ctc.pte, a small model of speech that is decoded by CTC, for tests in C++:
python test/faults/make_ctc.py"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "python" / "llm"))


def main() -> None:
    import graft
    from ctc_models import CtcModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
             "conv_dim": (4,) * 7, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}  # fmt: skip
    kind = CtcModel("tiny", "Wav2Vec2ForCTC", {"vocab_size": 32, "pad_token_id": 0, **sizes})
    with tempfile.TemporaryDirectory() as folder, tarfile.open(HERE / "ctc.tar.xz", "w:xz") as archive:
        package = graft.export_llm(kind.save(Path(folder) / "model"), Path(folder) / "ctc.pte")
        archive.add(package, package.name)


if __name__ == "__main__":
    main()
