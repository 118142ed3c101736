#!/usr/bin/env bash
# The C++ install must stand on its own: installed, moved elsewhere, and used with .venv hidden and an empty
# environment. usage: install_check.sh VENV BUILD
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD venv=$(cd "$1" && pwd) build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "install check: $*" >&2; exit 1; }

echo "== Install check"
"$venv/bin/cmake" --install "$build" --component sdk --prefix "$work/made" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
mv "$work/made" "$work/moved"
prefix=$work/moved

# A model to run: y = 2 x + 1 in f32. x is zeros in the example.
"$venv/bin/python" - "$work/model.pte" <<'PYTHON'
import sys
import torch
import graft

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1

graft.export(Model(), (torch.zeros(3),), path=sys.argv[1])
PYTHON

# And a language model of random weights whose tokens are letters.
"$venv/bin/python" - "$work/talk.pte" <<'PYTHON'
import sys
from pathlib import Path
import tokenizers
import torch
import transformers
import graft

folder = Path(sys.argv[1]).with_name("talk")
letters = {letter: i for i, letter in enumerate(["<unk>", *"abcdefghijklmnopqrstuvwxyz"])}
words = tokenizers.Tokenizer(tokenizers.models.BPE(letters, [], unk_token="<unk>"))
words.decoder = tokenizers.decoders.Fuse()
transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=27, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
    max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
)
transformers.LlamaForCausalLM(config).save_pretrained(folder)
graft.export_llm(folder, sys.argv[1])
PYTHON

"$venv/bin/python" examples/flow/export.py "$work/encode_decode.pte"

# The examples are configured and built against the moved prefix alone. The environment's own cmake is only the tool.
for example in cpp language_model flow; do
  cp -r "examples/$example" "$work/$example"
  "$venv/bin/cmake" -S "$work/$example" -B "$work/$example/build" -DCMAKE_PREFIX_PATH="$prefix" -G Ninja \
    -DCMAKE_MAKE_PROGRAM="$venv/bin/ninja" -DCMAKE_BUILD_TYPE=Release >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  "$venv/bin/cmake" --build "$work/$example/build" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
done

# Hides .venv where this kernel lets us mount; nothing of this shell's environment is passed on either way.
hidden() {
  if unshare -rm mount -t tmpfs none "$venv" 2>/dev/null; then
    unshare -rm sh -c 'mount -t tmpfs none "$1" && shift && exec env -i "$@"' sh "$venv" "$@"
  else
    env -i "$@"
  fi
}
run_model=$work/cpp/build/run_model
output=$(hidden "$run_model" "$work/model.pte")
[ "$output" = "f32[3] 1 ..." ] || fail "the example printed '$output'"
talk=$(echo abc | hidden "$work/language_model/build/talk" "$work/talk.pte")
[[ "$talk" =~ ^[a-z]{10,}$ ]] || fail "the talking example printed '$talk'"
flow=$(hidden "$work/flow/build/encode_decode" "$work/encode_decode.pte")
[[ "$flow" == *"40 runs, the same as the stages"* ]] || fail "the example of a flow printed '$flow'"
hidden "$prefix/bin/graft" --help >"$work/log" || fail "bin/graft --help failed"

libraries=$(hidden "$(command -v ldd)" "$run_model" "$prefix/bin/graft" "$prefix"/lib*/libgraft.so)
grep -E 'libpython|libtorch|libexecutorch|not found' <<<"$libraries" && fail "a library that must not be needed"
grep -F "$root" <<<"$libraries" && fail "something is loaded from the source tree"
for file in "$prefix"/lib*/*.so* "$prefix/bin/graft"; do
  grep -qF -e "$root" -e "$work/made" < <(readelf -d "$file") && fail "$file remembers where it was built"
done
grep -rlF -e "$root" -e "$work/made" "$prefix"/lib*/cmake && fail "the CMake package remembers where it was built"
grep -rlE "include *[<\"]ggml" "$prefix/include" && fail "a public header includes ggml"

library=$(echo "$prefix"/lib*/libgraft.so)
strip -o "$work/stripped" "$library"
echo "   the moved install runs; libgraft.so stripped: $(($(stat -c %s "$work/stripped") / 1024)) KiB"
