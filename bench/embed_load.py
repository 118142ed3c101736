"""Embeddings under load: clients that ask for the vectors of texts of MiniLM, from `graft serve`, infinity and llama-server.

    python bench/embed_load.py [--clients 64] [--texts 1] [--tokens 64] [--requests 8] [--rounds 5] [--peers graft,infinity,...]

Each client asks --requests times for --texts texts of about --tokens tokens, over a connection of its own. Servers take turns; one that has no
request does nothing. Ratios are made round by round. The vectors of all servers must agree.

infinity-torch is infinity-emb with its engine torch (others by their names); llama-server is the one in xllamacpp, and reads the same weights
from a GGUF file in f32. Each has an environment of its own: --python peer=path,... names interpreters (default:
build/bench/embed_load/PEER, made when it is missing).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import numpy as np

BENCH = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCH), str(BENCH.parent / "test" / "python"), str(BENCH.parent / "test" / "python" / "llm")]

import peer_servers  # noqa: E402
from peer_servers import XLLAMACPP, by_names, environment, free_port, listening  # noqa: E402
from serving import Server, export_minilm  # noqa: E402

PACKAGES = {
    "infinity": ["infinity-emb[server,torch,optimum]==0.0.78", "transformers<5", "click<8.2"],
    "llama-server": [XLLAMACPP],
}
WORDS = "the of and to in a is that for it was on are as with his they at be this from have or by one had not but what all".split()


@contextmanager
def graft_server(folder: Path, precision: str, threads: int) -> Iterator[int]:
    package, source = folder / "minilm.pte", folder / "model"
    if not package.exists():
        from torch.export import Dim

        found, _ = export_minilm(package, {0: Dim("rows", min=1, max=64), 1: Dim("tokens", min=2, max=512)})
        shutil.copytree(found, source, dirs_exist_ok=True)
    arguments = f"m={package}", "--tokenizer", f"m={source / 'tokenizer.json'}", "--threads", threads, "--no-request-log"
    with Server(*arguments, "--matmul-precision", precision) as server:
        yield server.port


@contextmanager
def infinity(folder: Path, python: Path, engine: str, dtype: str, threads: int) -> Iterator[int]:
    port = free_port()
    arguments = [python.with_name("infinity_emb"), "v2", "--model-id", folder / "model", "--served-model-name", "m", "--engine", engine,
                 "--device", "cpu", "--port", port, "--dtype", dtype, "--no-bettertransformer"]  # fmt: skip
    more = {"OMP_NUM_THREADS": str(threads), "ANONYMIZED_TELEMETRY": "0", "DO_NOT_TRACK": "1"}
    with listening(arguments, port, more):
        yield port


# llama.cpp's names of what BERT has in a layer.
BERT = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    "word_embeddings": "token_embd", "position_embeddings": "position_embd", "token_type_embeddings": "token_types", "LayerNorm": "token_embd_norm",
}  # fmt: skip


def write_gguf(source: Path, path: Path) -> None:
    """MiniLM as llama.cpp's converter writes it, with its mean of the states."""
    import gguf_writer
    import transformers

    model = transformers.AutoModel.from_pretrained(source)
    config, tensors = model.config, {}
    for name, tensor in model.state_dict().items():
        place, _, rest = name.removeprefix("encoder.layer.").removeprefix("embeddings.").partition(".")
        stem, _, end = (rest if place.isdigit() else f"{place}.{rest}").rpartition(".")
        if stem in BERT:
            tensors[f"{f'blk.{place}.' if place.isdigit() else ''}{BERT[stem]}.{end}"] = tensor
    words = (source / "vocab.txt").read_text().splitlines()
    special = [word.startswith("[") and word.endswith("]") for word in words]
    pieces = [word if is_special else word[2:] if word.startswith("##") else "\u2581" + word for word, is_special in zip(words, special)]
    ids = {name: words.index(f"[{name.upper()}]") for name in ("cls", "sep", "pad", "unk", "mask")}
    values = {
        "general.architecture": "bert", "bert.block_count": config.num_hidden_layers, "bert.context_length": config.max_position_embeddings,
        "bert.embedding_length": config.hidden_size, "bert.feed_forward_length": config.intermediate_size,
        "bert.attention.head_count": config.num_attention_heads, "bert.attention.layer_norm_epsilon": float(config.layer_norm_eps),
        "bert.attention.causal": False, "bert.pooling_type": 1, "tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": np.array([3 if is_special else 1 for is_special in special], np.int32),
        "tokenizer.ggml.token_type_count": config.type_vocab_size, "tokenizer.ggml.bos_token_id": ids["cls"],
        "tokenizer.ggml.cls_token_id": ids["cls"], "tokenizer.ggml.eos_token_id": ids["sep"], "tokenizer.ggml.seperator_token_id": ids["sep"],
        "tokenizer.ggml.padding_token_id": ids["pad"], "tokenizer.ggml.unknown_token_id": ids["unk"], "tokenizer.ggml.mask_token_id": ids["mask"],
    }  # fmt: skip
    gguf_writer.write_gguf(path, values, tensors)


@contextmanager
def llama_server(folder: Path, python: Path, clients: int, threads: int) -> Iterator[int]:
    path = folder / "minilm.gguf"
    if not path.exists():
        write_gguf(folder / "model", path)
    settings = {"n_ctx": 512 * clients, "n_batch": 4096, "n_ubatch": 4096, "embedding": True}
    with peer_servers.llama_server(python, path, clients, threads, **settings) as port:
        yield port


def texts_of(number: int, options: argparse.Namespace) -> list[str]:
    random = np.random.default_rng(number)
    return [" ".join(random.choice(WORDS, options.tokens - 2)) for _ in range(options.texts)]


def requests_of(port: int, number: int, options: argparse.Namespace) -> list[bytes]:
    """Of a client, made before the time counts."""
    path = b"/v1/embeddings" if options.prefixed[port] else b"/embeddings"
    bodies = [json.dumps({"model": "m", "input": texts_of(number * 1000 + turn, options)}).encode() for turn in range(options.requests)]
    return [
        b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        for body in bodies
    ]


async def client(port: int, number: int, requests: list[bytes], times: list[float], vectors: dict) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    for turn, request in enumerate(requests):
        begin = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))[15:])
        answer = await reader.readexactly(length)
        times.append(time.perf_counter() - begin)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer[:300])
        if number == 0:
            vectors[turn] = np.array([entry["embedding"] for entry in json.loads(answer)["data"]])
    writer.close()


async def load(port: int, round_: int, options: argparse.Namespace) -> tuple[float, list[float], dict]:
    times: list[float] = []
    vectors: dict = {}
    numbers = [i and i + round_ * 100 for i in range(options.clients)]
    requests = [requests_of(port, number, options) for number in numbers]
    begin = time.perf_counter()
    await asyncio.gather(*(client(port, number, own, times, vectors) for number, own in zip(numbers, requests, strict=True)))
    return options.clients * options.requests * options.texts / (time.perf_counter() - begin), times, vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--texts", type=int, default=1, help="of a request")
    parser.add_argument("--tokens", type=int, default=64, help="of a text")
    parser.add_argument("--requests", type=int, default=8, help="of a client in a sample")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", default="graft,infinity-torch")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--precision", default="highest", help="of graft's products: highest, or medium (bf16)")
    parser.add_argument("--dtype", default="float32", help="of infinity: float32 or bfloat16")
    parser.add_argument("--tolerance", type=float, default=2e-3, help="of elements of vectors")
    parser.add_argument("--folder", type=Path, default=BENCH.parent / "build" / "bench" / "embed_load")
    parser.add_argument("--python", default="", help="interpreters of peers: llama-server=path,...")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    peers = options.peers.split(",")
    given = by_names(options.python)

    def python_of(peer: str) -> Path:
        return Path(given[peer]) if peer in given else environment(options.folder / peer, PACKAGES[peer])

    def start(peer: str) -> AbstractContextManager[int]:
        if peer == "graft":
            return graft_server(options.folder, options.precision, options.threads)
        if peer == "llama-server":
            return llama_server(options.folder, python_of(peer), options.clients, options.threads)
        return infinity(options.folder, python_of("infinity"), peer.partition("-")[2], options.dtype, options.threads)

    rates: dict[str, list[float]] = {peer: [] for peer in peers}
    latencies: dict[str, list[float]] = {peer: [] for peer in peers}
    differences = dict.fromkeys(peers, 0.0)
    with ExitStack() as stack:
        ports = {}
        for peer in peers:
            ports[peer] = stack.enter_context(start(peer))
        options.prefixed = {port: not peer.startswith("infinity") for peer, port in ports.items()}
        for port in ports.values():
            asyncio.run(load(port, 99, options))  # warm
        for round_ in range(options.rounds):
            found = {}
            for peer in peers if round_ % 2 == 0 else peers[::-1]:
                rate, times, found[peer] = asyncio.run(load(ports[peer], round_, options))
                rates[peer].append(rate)
                latencies[peer] += times
            for peer in peers[1:]:
                for turn, vectors in found[peer].items():
                    differences[peer] = max(differences[peer], float(np.abs(found["graft"][turn] - vectors).max()))
                    np.testing.assert_allclose(found["graft"][turn], vectors, rtol=0, atol=options.tolerance)
    print(f"{options.clients} clients, {options.texts} texts of {options.tokens} tokens a request; vectors agree within {options.tolerance}\n")
    print("| server | texts/s | median ms | p99 ms | graft / it | vectors differ by |\n|---|---:|---:|---:|---:|---:|")
    for peer in peers:
        ratio = statistics.median(a / b for a, b in zip(rates["graft"], rates[peer], strict=True))
        middle, late = 1e3 * np.percentile(latencies[peer], [50, 99])
        print(f"| {peer} | {statistics.median(rates[peer]):.1f} | {middle:.0f} | {late:.0f} | {ratio:.2f} | {differences[peer]:.1e} |")


if __name__ == "__main__":
    main()
