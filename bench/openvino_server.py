"""OpenVINO GenAI's ContinuousBatchingPipeline behind /v1/completions: token ids in, a stream of tokens out.

    python openvino_server.py FOLDER ROWS CONTEXT THREADS

The address it listens on is the first line it prints.
"""

from __future__ import annotations

import itertools
import json
import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import openvino
import openvino_genai

folder, rows, context, threads = sys.argv[1], *map(int, sys.argv[2:])
scheduler = openvino_genai.SchedulerConfig()
scheduler.cache_size = 1 + rows * context * 28 * 8 * 128 * 2 * 2 // 2**30  # GB: layers, heads, size of a head, keys and values, 2 bytes
scheduler.max_num_seqs = rows
scheduler.max_num_batched_tokens = 2048
scheduler.enable_prefix_caching = False
pipeline = openvino_genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
arrived: queue.Queue = queue.Queue()


def run() -> None:
    """Requests are added, and what they got is read, by the thread that steps: reading waits with Python's lock held."""
    running: list = []
    numbers = itertools.count()
    while True:
        while not running or not arrived.empty():
            ids, settings, tokens = arrived.get()
            running.append((pipeline.add_request(next(numbers), ids, settings), tokens))
        pipeline.step()
        for handle, tokens in running:
            while handle.can_read():
                for output in handle.read().values():
                    tokens.put(output.generated_ids)
        running = [entry for entry in running if entry[0].get_status() == openvino_genai.GenerationStatus.RUNNING]


class Completions(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        settings = openvino_genai.GenerationConfig()
        settings.max_new_tokens, settings.ignore_eos = request["max_tokens"], True
        ids = openvino.Tensor(np.array([request["prompt"]], np.int64))
        tokens: queue.Queue = queue.Queue()
        arrived.put((ids, settings, tokens))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        count = 0
        while count < request["max_tokens"]:
            new = tokens.get()
            count += len(new)
            self.event({"choices": [{"text": "".join(f"t{token} " for token in new)}]})
        self.event({"choices": [], "usage": {"completion_tokens": count}})

    def event(self, value: dict) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


threading.Thread(target=run, daemon=True).start()
server = ThreadingHTTPServer(("127.0.0.1", 0), Completions)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
