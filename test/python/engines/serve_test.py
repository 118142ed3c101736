"""`graft.ray.app` beside `graft serve`: the same answers, and none lost while replicas change or end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import graft
import graft.ray
from serving import Server

ray = pytest.importorskip("ray", reason="no ray: pip install -r requirements/engines.txt")
serve = pytest.importorskip("ray.serve", reason="no ray.serve: pip install -r requirements/engines.txt")
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

PATIENCE = 300  # seconds


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Client:
    """Requests to the application, as `Server` sends them to a process."""

    get, post, good, complete, events = Server.get, Server.post, Server.good, Server.complete, Server.events

    def __init__(self) -> None:
        self.port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": self.port})

    def run(self, *args, **settings) -> Client:
        serve.run(graft.ray.app(*args, **settings))
        return self

    def request(self, method: str, path: str, body: bytes | None = None, headers: dict | None = None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer, answer.read()

    def headers(self, path: str, fields: dict):
        answer, body = self.request("POST", path, json.dumps(fields).encode(), {"Content-Type": "application/json"})
        return answer.status, answer.headers, body


@pytest.fixture(scope="module")
def client():
    # Where others use the CPUs too, Serve's proxy takes long to start.
    os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = str(PATIENCE)
    ray.init("local", num_cpus=8, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield Client()
    serve.shutdown()
    ray.shutdown()


def processes(what: str = "serve") -> list[tuple[int, int]]:
    """(process of graft serve, its replica) of this user's replicas of Ray."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            shell = _parent(int(entry.name))
            replica = _parent(shell)
            above = Path(f"/proc/{replica}/cmdline").read_bytes()
        except (OSError, IndexError, ValueError):
            continue
        if len(words) > 2 and words[0].endswith(b"graft") and words[1] == what.encode() and b"ray::" in above:
            found.append((int(entry.name), replica))
    return sorted(found)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_for(condition, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def plain(value):
    """Without what each answer has of its own."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in ("id", "created", "created_at")}
    return [plain(item) for item in value] if isinstance(value, list) else value


JSON = {"Content-Type": "application/json"}
CASES = [
    ("GET", "/health", None),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/stories", None),
    ("GET", "/v1/models/absent", None),
    ("GET", "/v2", None),
    ("GET", "/v2/health/ready", None),
    ("GET", "/v2/models/net", None),
    ("GET", "/openapi.json", None),
    ("GET", "/absent", None),
    ("POST", "/v1/completions", {"prompt": "Once upon", "max_tokens": 8, "temperature": 0, "logprobs": 2}),
    ("POST", "/v1/completions", {"prompt": ["Lily", "Tom"], "max_tokens": 4, "seed": 7, "n": 2}),
    ("POST", "/v1/completions", {"prompt": "x", "temperature": 3}),
    ("POST", "/v1/completions", {"prompt": "x", "model": "absent"}),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi \u00e9"}], "max_tokens": 4, "temperature": 0}),
    ("POST", "/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "model": "stories", "temperature": 0}),
    ("POST", "/tokenize", {"content": "Once upon a time"}),
    ("POST", "/v2/models/net/infer", {"inputs": [{"name": "input_1", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}),
    ("POST", "/v1/embeddings", {"input": "text"}),
]  # fmt: skip


def test_answers_are_those_of_graft_serve(client, stories, net):
    client.run([stories, net], num_cpus=1)
    with Server(stories, net, "--rows", 8, "--threads", 1) as server:
        for method, path, fields in CASES:
            body = None if fields is None else json.dumps(fields).encode()
            (expected, text), (found, got) = (s.request(method, path, body, JSON) for s in (server, client))
            assert found.status == expected.status, (path, got)
            assert plain(json.loads(got)) == plain(json.loads(text)), path
            assert found.headers["content-type"] == expected.headers["content-type"]
        for bad in (b"", b"{", b"[1]", b'{"prompt": "\xff"}', b'{"model": 3}'):
            (expected, text), (found, got) = (s.request("POST", "/v1/completions", bad, JSON) for s in (server, client))
            assert (found.status, json.loads(got)) == (expected.status, json.loads(text)), bad
            assert found.status == 400
        fields = {"prompt": "Once", "max_tokens": 12, "temperature": 0, "stream_options": {"include_usage": True}}
        expected, found = (plain(s.events("/v1/completions", **fields)) for s in (server, client))
        assert found == expected and found[-1] == "[DONE]" and len(found) > 6
    status, error = client.post("/v1/models/load", {"model": "net"})
    assert status == 403 and "Ray Serve decides" in error["error"]["message"]
    assert client.get("/metrics")[0] == 404


def test_streams_come_as_they_are_computed(client, stories):
    client.run([stories])
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=PATIENCE)
    fields = {"prompt": "Once", "max_tokens": 400, "stream": True, "ignore_eos": True, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(fields), JSON)
    answer = connection.getresponse()
    first = answer.readline()
    assert first.startswith(b"data: ")
    ((_, replica),) = processes()
    # The client goes, and so does what is computed for it.
    connection.close()
    answer.close()
    wait_for(lambda: idle(replica), "a text goes on whose client is gone")


def idle(replica: int) -> bool:
    """Whether no text runs in the process of this replica."""
    (process,) = [p for p, r in processes() if r == replica]
    port = listening(process)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    return all(line.split()[-1] in ("0", "0.0") for line in text.splitlines() if line.startswith("vllm:num_requests_running"))


def listening(process: int) -> int:
    """The port at which a process listens."""
    sockets = {os.readlink(f"/proc/{process}/fd/{fd}") for fd in os.listdir(f"/proc/{process}/fd")}
    for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
            return int(words[1].partition(":")[2], 16)
    raise AssertionError(f"{process} does not listen")


def test_prompts_go_where_their_beginning_is_known(client, stories):
    client.run([stories], replicas=3)
    assert len(processes()) == 3
    talks = [f"{i} {'Once upon a time there was a cat. ' * 12}" for i in range(9)]
    for turn in range(4):
        for i, talk in enumerate(talks):
            usage = client.complete(talk, max_tokens=1)["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert turn == 0 or cached >= 64, (turn, i, usage)
            talks[i] += " And then the dog came."
    # Not because one replica has them all.
    used = [r for _, r in processes() if tokens_of(r) > 0]
    assert len(used) >= 2


def tokens_of(replica: int) -> float:
    (process,) = [p for p, r in processes() if r == replica]
    connection = http.client.HTTPConnection("127.0.0.1", listening(process), timeout=PATIENCE)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:prompt_tokens_total"))


def test_models_take_turns(client, stories):
    names = ["a", "b", "c"]
    client.run({name: stories for name in names}, models_per_replica=1)
    expected = client.complete("Once", model="a", max_tokens=6, temperature=0)["choices"][0]["text"]
    with ThreadPoolExecutor(6) as pool:
        answers = pool.map(lambda i: client.complete("Once", model=names[i % 3], max_tokens=6, temperature=0), range(18))
        for i, answer in enumerate(answers):
            assert (answer["model"], answer["choices"][0]["text"]) == (names[i % 3], expected)
    client.complete("Once", model="b", max_tokens=1)
    wait_for(lambda: statuses(client) == {"a": "unloaded", "b": "loaded", "c": "unloaded"}, "one model is loaded")
    assert client.post("/v1/completions", {"model": "d", "prompt": "x"})[0] == 404
    assert client.complete("Once", max_tokens=1)["model"] == "a"  # the first is the default


def statuses(client) -> dict[str, str]:
    return {model["id"]: model["status"]["value"] for model in client.get("/v1/models")[1]["data"]}


class Load:
    """Clients that ask one after the other until the end of the with block; what each answer was."""

    def __init__(self, client, clients: int = 4, **fields) -> None:
        self.client, self.fields = client, {"prompt": "Once", "max_tokens": 24, "temperature": 0, **fields}
        self.found: list[tuple[int, str | None, str | None]] = []
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(clients)]

    def _ask(self, number: int) -> None:
        turn = 0
        while not self.stop.is_set():
            prompt = f"{number} {self.fields['prompt']} {turn % 5}"
            status, headers, body = self.client.headers("/v1/completions", {**self.fields, "prompt": prompt})
            text = json.loads(body)["choices"][0]["text"] if status == 200 else None
            self.found.append((status, headers.get("Retry-After"), text))
            turn += 1

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        self.more(20)
        return self

    def more(self, count: int) -> None:
        """Waits for as many answers."""
        end = len(self.found) + count
        wait_for(lambda: len(self.found) >= end, "no answers come")

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(PATIENCE)


def test_no_request_is_lost_while_replicas_are_replaced(client, stories):
    client.run([stories], replicas=3)
    before = {replica for _, replica in processes()}
    with Load(client) as load:
        # Another setting: Serve replaces each replica, one after the other.
        client.run([stories], replicas=3, arguments=["--max-texts", "64"])
        load.more(20)
    after = {replica for _, replica in processes()}
    assert len(before) == len(after) == 3 and not before & after
    assert {status for status, _, _ in load.found} == {200} and all(text for _, _, text in load.found)


def test_replicas_come_with_the_load_and_go_after_it(client, stories):
    quickly = {"upscale_delay_s": 1, "downscale_delay_s": 3, "metrics_interval_s": 0.5, "look_back_period_s": 2}
    client.run([stories], rows=1, replicas=(1, 3), autoscaling=quickly)
    wait_for(lambda: len(processes()) == 1, "those of the application before do not go")
    with Load(client, clients=8, max_tokens=200) as load:
        wait_for(lambda: len(processes()) == 3, "no replica comes")
        load.more(20)
        most = len({replica for _, replica in processes()})
    wait_for(lambda: len(processes()) == 1, "no replica goes")
    assert most == 3 and {status for status, _, _ in load.found} == {200}
    assert client.headers("/v1/completions", load.fields)[0] == 200


@pytest.mark.parametrize("who", ["replica", "process"])
def test_a_killed_replica_costs_no_answer(client, stories, who):
    client.run([stories], replicas=3)
    with Load(client, clients=6) as load:
        process, replica = processes()[0]
        os.kill(replica if who == "replica" else process, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{process}").exists(), "the process outlives its replica")
        load.more(30)
    for status, retry_after, _ in load.found:
        assert status == 200 or (status == 503 and retry_after), (status, retry_after)
    assert sum(status == 200 for status, _, _ in load.found) >= 50
    wait_for(lambda: len({r for _, r in processes()} - {replica}) == 3, "Serve starts no other replica")


def test_a_stream_whose_replica_ends_says_so(client, stories):
    client.run([stories])
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=PATIENCE)
    fields = {"prompt": "Once", "max_tokens": 400, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(fields), JSON)
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    ((process, _),) = processes()
    os.kill(process, signal.SIGKILL)
    events = [part for part in answer.read().decode().split("\n\n") if part]
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "replica_lost"


def test_too_many_requests_are_told_to_wait(client, stories):
    client.run([stories], rows=1, max_queued=1)
    fields = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True}
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: client.headers("/v1/completions", fields), range(12)))
    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 429}
    for status, headers, body in answers:
        if status == 429:
            assert headers["Retry-After"] == "1" and json.loads(body)["error"]["code"] == "queue_full"


def test_bodies_have_a_limit(client, stories):
    client.run([stories], max_body_bytes=1000)
    status, error = client.post("/v1/completions", {"prompt": "x" * 1000})
    assert (status, error["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"models": []}, "models: must name a package"),
        ({"models": ["a/x.pte", "b/x.pte"]}, "have one name"),
        ({"num_cpus": 1.5}, "num_cpus must be whole, got 1.5"),
        ({"replicas": 0}, "replicas must be at least 1, got 0"),
        ({"replicas": (3, 2)}, r"replicas must be a number or \(least, most\)"),
        ({"replicas": 2, "autoscaling": {"upscale_delay_s": 1}}, r"autoscaling needs replicas as \(least, most\)"),
        ({"bound": 1.0}, "bound must be above 1"),
        ({"tries": 0}, "tries must be at least 1"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(graft.InvalidArgument, match=message):
        graft.ray.app(**{"models": ["x.pte"], **settings})
