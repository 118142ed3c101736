"""Discrete events: replicas of `graft serve` that compute step by step, a router before them, arrivals and failures.

A step of a replica gives each running text a token and reads a chunk of one prompt; it takes
`Times.step + Times.row * texts + Times.token * tokens of the chunk` seconds. Runs of steps in which nothing changes are one event,
so that ten thousand replicas are a matter of seconds. The router is the one of graft.ray, not a model of it.
"""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from graft.ray.affinity import Affinity

TOKENS = 64  # of a block of the prefix cache
CHUNK = 512  # tokens of a prompt that a step reads at most
DOWN = 1 << 40  # the load of a replica that is not there


@dataclass(frozen=True)
class Times:
    """Seconds of one process with one thread that has a CPU for itself."""

    step: float  #: of any step
    row: float  #: more for each running text
    token: float  #: more for each token of a prompt
    request: float  #: of a request besides: HTTP, tokens to text


@dataclass
class Request:
    """blocks: a number for each whole block of the prompt, equal where prompts are equal up to its end. talk: its number. tokens: of the prompt.
    answer: tokens to generate. follow: makes the next turn of this talk when the answer is complete."""

    at: float
    blocks: Sequence[int]
    talk: int
    tokens: int
    answer: int
    follow: Callable[[float], Request | None] = lambda _: None
    first: float = 0.0  # when its first token came
    end: float = 0.0
    cached: int = 0  # tokens
    retried: int = 0
    left: int = 0  # tokens of the prompt to be read


@dataclass(frozen=True)
class Cluster:
    """cpus: of a host. per_host: replicas of one. rows: texts that a replica runs at once. cache: blocks that it keeps.
    routers: each with its own memory of what it sent where. policy: "affinity", "least" (the least busy of all) or "random".
    mtbf: mean seconds between failures of a replica; 0: none. restart: seconds until it is back, its cache empty.
    notice: seconds until routers know that it is gone, if no request has told them before."""

    replicas: int
    cpus: int = 1
    per_host: int = 1
    rows: int = 8
    cache: int = 4096
    routers: int = 4
    policy: str = "affinity"
    mtbf: float = 0.0
    restart: float = 30.0
    notice: float = 1.0
    seed: int = 0


class Replica:
    """One process: texts that run, prompts that wait, and the blocks that it knows."""

    def __init__(self, name: str, host: list[int]) -> None:
        self.name, self.host = name, host  # host: [replicas that compute now]
        self.waiting: deque[Request] = deque()
        self.reading: Request | None = None
        self.running: list[tuple[int, int, Request]] = []  # (step at which it ends, a number, request)
        self.known: OrderedDict[int, None] = OrderedDict()
        self.steps, self.began, self.pace, self.jump = 0, 0.0, 0.0, 0
        self.version, self.busy, self.up = 0, False, True

    def load(self) -> int:
        return len(self.waiting) + len(self.running) + (self.reading is not None)


@dataclass
class Simulation:
    cluster: Cluster
    times: Times
    done: list[Request] = field(default_factory=list[Request])
    failures: int = 0

    def run(self, requests: Iterable[Request], until: float = float("inf")) -> list[Request]:
        """The requests that were answered, by the end of their answers. Talks that go on after `until` are cut."""
        self._draw, self._number, self._events = random.Random(self.cluster.seed), 0, list[tuple[float, int, object, int]]()
        self._until = until
        hosts = [[0] for _ in range(-(-self.cluster.replicas // self.cluster.per_host))]
        self.replicas = {f"r{i}": Replica(f"r{i}", hosts[i // self.cluster.per_host]) for i in range(self.cluster.replicas)}
        self._loads, self._total = dict.fromkeys(self.replicas, 0), 0
        self._names = list(self.replicas)
        count = self.cluster.routers if self.cluster.policy == "affinity" else 0
        self._routers = [Affinity(self.replicas, free=max(1, self.cluster.rows // 2)) for _ in range(count)]
        for request in requests:
            self._later(request.at, request)
        if self.cluster.mtbf:
            for replica in self.replicas.values():
                self._fail_later(0.0, replica)
        self._left = len([event for event in self._events if isinstance(event[2], Request)])
        while self._events and self._left:
            now, _, what, version = heapq.heappop(self._events)
            if isinstance(what, Request):
                if now <= until:
                    self._arrive(now, what)
                else:
                    self._left -= 1
            elif isinstance(what, Replica):
                if version == what.version:
                    self._stepped(now, what)
            elif callable(what):
                what(now)
        return self.done

    def _later(self, at: float, what: object, version: int = 0) -> None:
        self._number += 1
        heapq.heappush(self._events, (at, self._number, what, version))

    # --- routing ---

    def _arrive(self, now: float, request: Request) -> None:
        name = self._chosen(request)
        replica = self.replicas[name]
        self._loads[name] += 1
        self._total += 1
        if not replica.up:  # nobody knew: the router sees the connection fail
            self._gone(replica)
            self._lost(now, replica, request)
            return
        replica.waiting.append(request)
        if replica.busy:
            self._interrupt(now, replica)
        else:
            self._begin(now, replica)

    def _chosen(self, request: Request) -> str:
        if self.cluster.policy == "random":
            return self._draw.choice([n for n in self._names if self._loads[n] < DOWN])
        if self.cluster.policy == "least":
            # Of some, as a router of thousands does: the least busy of two hundred.
            some = self._names if len(self._names) <= 200 else self._draw.sample(self._names, 200)
            return min(some, key=lambda name: (self._loads[name], self._draw.random()))
        router = self._draw.choice(self._routers)
        name = router.choose(request.blocks, self._loads.__getitem__, self._total, request.talk)
        assert name is not None
        router.record(request.blocks, name)
        return name

    # --- a replica ---

    def _slower(self, replica: Replica) -> float:
        return max(1.0, replica.host[0] / self.cluster.cpus)

    def _begin(self, now: float, replica: Replica) -> None:
        """The next steps, up to where something changes."""
        if replica.reading is None and replica.waiting and len(replica.running) < self.cluster.rows:
            replica.reading = request = replica.waiting.popleft()
            known = 0
            for block in request.blocks:
                if block not in replica.known:
                    break
                known += 1
            request.cached = min(known * TOKENS, request.tokens - 1)  # the last token is always read
            request.left = request.tokens - request.cached
        if not replica.running and replica.reading is None:
            replica.version += 1
            if replica.busy:
                replica.busy, replica.host[0] = False, replica.host[0] - 1
            return
        if not replica.busy:
            replica.busy, replica.host[0] = True, replica.host[0] + 1
        pace, times = self.times.step + self.times.row * len(replica.running), self.times
        if replica.reading is not None:
            replica.jump = 1
            pace += times.token * min(CHUNK, replica.reading.left)
            if replica.reading.left == replica.reading.tokens - replica.reading.cached:
                pace += times.request
        else:
            replica.jump = replica.running[0][0] - replica.steps
            if self.cluster.per_host > self.cluster.cpus:
                replica.jump = min(replica.jump, 8)  # how many share the CPUs changes meanwhile
        replica.began, replica.pace = now, pace * self._slower(replica)
        replica.version += 1
        self._later(now + replica.jump * replica.pace, replica, replica.version)

    def _interrupt(self, now: float, replica: Replica) -> None:
        """A request came during a run of steps: the run ends with the step that is computed now."""
        steps = min(replica.jump, int((now - replica.began) / replica.pace) + 1)
        if steps < replica.jump:
            replica.jump = steps
            replica.version += 1
            self._later(replica.began + steps * replica.pace, replica, replica.version)

    def _stepped(self, now: float, replica: Replica) -> None:
        replica.steps += replica.jump
        while replica.running and replica.running[0][0] <= replica.steps:
            self._answered(now, replica, heapq.heappop(replica.running)[2])
        if (request := replica.reading) is not None:
            request.left -= min(CHUNK, request.left)
            if not request.left:
                replica.reading, request.first = None, now
                self._know(replica, request.blocks)
                if request.answer <= 1:
                    self._answered(now, replica, request)
                else:
                    self._number += 1
                    heapq.heappush(replica.running, (replica.steps + request.answer - 1, self._number, request))
        self._begin(now, replica)

    def _know(self, replica: Replica, blocks: Sequence[int]) -> None:
        for block in blocks:
            replica.known[block] = None
            replica.known.move_to_end(block)
        while len(replica.known) > self.cluster.cache:
            replica.known.popitem(last=False)

    def _answered(self, now: float, replica: Replica, request: Request) -> None:
        request.end = now
        self._loads[replica.name] -= 1
        self._total -= 1
        self._left -= 1
        self.done.append(request)
        following = request.follow(now)
        if following is not None:
            self._left += 1
            self._later(following.at, following)

    # --- failures ---

    def _fail_later(self, now: float, replica: Replica) -> None:
        self._later(now + self._draw.expovariate(1 / self.cluster.mtbf), lambda at: self._fail(at, replica))

    def _fail(self, now: float, replica: Replica) -> None:
        if now > self._until:
            return
        self.failures += 1
        requests = [*replica.waiting, *(entry[2] for entry in replica.running)]
        requests += [replica.reading] if replica.reading is not None else []
        replica.waiting.clear()
        replica.running.clear()
        replica.known.clear()
        replica.reading, replica.up, replica.version = None, False, replica.version + 1
        if replica.busy:
            replica.busy, replica.host[0] = False, replica.host[0] - 1
        for request in requests:
            self._lost(now, replica, request)
        self._later(now + self.cluster.notice, lambda at: self._gone(replica))
        self._later(now + self.cluster.restart, lambda at: self._back(at, replica))

    def _gone(self, replica: Replica) -> None:
        if not replica.up and self._loads[replica.name] < DOWN:
            self._loads[replica.name] += DOWN

    def _back(self, now: float, replica: Replica) -> None:
        replica.up = True
        self._loads[replica.name] %= DOWN
        self._fail_later(now, replica)

    def _lost(self, now: float, replica: Replica, request: Request) -> None:
        """It is asked again elsewhere, as the ingress of graft.ray does."""
        self._loads[replica.name] -= 1
        self._total -= 1
        request.retried += 1
        self._later(now + 0.05, request)


__all__ = ["CHUNK", "DOWN", "TOKENS", "Cluster", "Request", "Simulation", "Times"]
