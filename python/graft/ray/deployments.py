"""The two deployments of `graft.ray.app`, which alone imports this module: an ingress that speaks HTTP, and servers behind
it. Each replica of the latter is a process of `graft serve`; requests and answers pass byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import aiohttp
import fastapi
import fastapi.responses
import ray.exceptions
import ray.serve.exceptions
from ray import serve

from graft.errors import Error
from graft.ray.process import ServerProcess
from graft.ray.requests import Request, described, end_to_end

log = logging.getLogger("ray.serve")

Head = tuple[int, tuple[tuple[str, str], ...]]  # status and headers: the first item of an answer, before pieces of its body


class ReplicaLost(Error):
    """The process of `graft serve` behind a replica ended before it had answered."""


class Server:
    """A replica: one process of `graft serve` with all models, of which some are loaded."""

    def __init__(self, models: Mapping[str, str], arguments: Sequence[str], loaded: int) -> None:
        self.models, self.all = dict(models), loaded >= len(models)
        first = next(iter(models))
        more = () if self.all else ("--model-control", "--load", first)
        cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
        self.process = ServerProcess(models, (*arguments, *more), threads=max(1, int(cpus)))
        # What Serve does not know to be loaded: it goes when another comes.
        self.unasked = None if self.all else first
        self.session: aiohttp.ClientSession | None = None
        while self._plain("GET", "/health")[0] != 200:
            time.sleep(0.02)

    def _plain(self, method: str, path: str, fields: Any = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.process.port, timeout=600)
        try:
            body = None if fields is None else json.dumps(fields)
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as e:
            raise ReplicaLost(f"graft serve does not answer {path}: {e}") from e
        finally:
            connection.close()

    def change(self, name: str, what: str) -> None:
        """Loads or unloads a model."""
        status, body = self._plain("POST", f"/v1/models/{what}", {"model": name})
        if status != 200:
            raise Error(f"graft serve could not {what} '{name}': {status} {body.decode(errors='replace')}")

    async def load(self, name: str) -> Loaded:
        """For `serve.multiplexed`."""
        first, self.unasked = self.unasked, None
        if first is not None and first != name:
            await asyncio.to_thread(self.change, first, "unload")
        if first != name:
            await asyncio.to_thread(self.change, name, "load")
        return Loaded(self, name)

    async def model(self, name: str) -> Any:
        """`load` through Serve's cache: `sized` makes it."""
        raise NotImplementedError

    async def forward(self, request: Request) -> AsyncIterator[Head | bytes]:
        """The answer's head, then pieces of its body as they come."""
        with contextlib.ExitStack() as held:
            if not self.all and request.model in self.models:
                held.enter_context((await self.model(request.model)).used())
            async with contextlib.aclosing(self._answer(request)) as answer:
                async for part in answer:
                    yield part

    async def _answer(self, request: Request) -> AsyncGenerator[Any]:
        if self.session is None:
            limits = aiohttp.ClientTimeout(total=None, sock_connect=10)
            self.session = aiohttp.ClientSession(
                auto_decompress=False, timeout=limits, connector=aiohttp.TCPConnector(limit=0)
            )
        url = f"http://127.0.0.1:{self.process.port}{request.target}"
        try:
            async with self.session.request(
                request.method, url, data=request.body or None, headers=request.headers, allow_redirects=False
            ) as answer:
                yield answer.status, end_to_end(answer.headers)
                async for part in answer.content.iter_any():
                    yield part
        except aiohttp.ClientError as e:
            raise ReplicaLost(f"graft serve ended before it had answered: {type(e).__name__}: {e}") from e

    def check_health(self) -> None:
        """Serve replaces a replica whose process is gone."""
        self._plain("GET", "/health")

    def __del__(self) -> None:
        if hasattr(self, "process"):
            self.process.stop()


class Loaded:
    """A model of a server as Serve's cache of models holds it: when it leaves the cache, it is unloaded, once the requests that
    came for it are answered."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name, self.users, self.gone = server, name, 0, False
        self.free = threading.Condition()

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        with self.free:
            self.users += 1
        try:
            yield
        finally:
            with self.free:
                self.users -= 1
                self.free.notify_all()

    def __del__(self) -> None:
        # Serve calls this in a thread, and Python once more.
        with self.free:
            if self.gone:
                return
            self.free.wait_for(lambda: not self.users)
            self.gone = True
        try:
            self.server.change(self.name, "unload")
        except ReplicaLost:  # and all its models with it
            pass
        except Error as e:
            log.error("graft: %s", e)


def sized(models: int) -> type[Server]:
    """A server that has at most so many models loaded."""

    class SizedServer(Server):
        @serve.multiplexed(max_num_models_per_replica=models)
        async def model(self, name: str) -> Any:
            return await self.load(name)

    return SizedServer


api = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)


def refusal(status: int, kind: str, message: str, code: str, **headers: str) -> fastapi.Response:
    """An error as `graft serve` writes it."""
    error = {"message": message, "type": kind, "param": None, "code": code}
    body = json.dumps({"error": error})
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return fastapi.Response(body, status, named, "application/json")


LOST = "the replica that computed the answer ended, and no other could take the request: try again"


async def rest(first: bytes, parts: Any) -> AsyncIterator[bytes]:
    """Of a stream whose beginning the client has: where its replica ends, an event says so, as of `graft serve`."""
    yield first
    try:
        async for part in parts:
            yield part
    except (ReplicaLost, ray.exceptions.RayActorError):
        error = {"message": "the replica that computed the answer ended: try again", "type": "server_error"}
        yield f"data: {json.dumps({'error': {**error, 'param': None, 'code': 'replica_lost'}})}\n\n".encode()


# Serve copies what it needs of this module here, so the rest stands above.
@serve.ingress(api)
class Ingress:
    """Takes requests and hands each to a replica; to another where one ended before its answer began."""

    def __init__(self, servers: Any, models: Sequence[str], loaded: int, tries: int, max_body_bytes: int) -> None:
        self.servers, self.tries, self.max_body_bytes = servers.options(stream=True), tries, max_body_bytes
        self.models = frozenset(models)
        # Which model a server takes for one that is not named depends on those that it has loaded.
        self.default = models[0] if loaded < len(models) else ""

    @api.get("/metrics")
    async def metrics(self) -> fastapi.Response:
        return refusal(404, "invalid_request_error", "each replica has metrics of its own: see those of Ray", "not_found")

    @api.post("/v1/models/{what:path}")
    async def control(self, what: str) -> fastapi.Response:
        return refusal(403, "invalid_request_error", "Ray Serve decides which models are loaded", "not_allowed")

    @api.api_route("/{path:path}", methods=["GET", "POST"])
    async def any(self, path: str, request: fastapi.Request) -> fastapi.Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self.max_body_bytes:
                message = f"the body is longer than {self.max_body_bytes} bytes"
                return refusal(413, "invalid_request_error", message, "body_too_large", connection="close")
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        given = described(request.method, target, end_to_end(request.headers), bytes(body), self.default)
        servers = self.servers
        if self.default and given.model in self.models:
            servers = servers.options(multiplexed_model_id=given.model)
        for _ in range(self.tries):
            try:
                return await self._through(servers, given)
            except (ReplicaLost, ray.exceptions.RayActorError, ray.serve.exceptions.DeploymentUnavailableError) as e:
                log.warning("graft: %s %s goes to another replica: %s", given.method, given.target, type(e).__name__)
                await asyncio.sleep(0.05)
            except ray.serve.exceptions.BackPressureError:
                return refusal(429, "rate_limit_error", "too many requests wait", "queue_full", Retry_After="1")
        return refusal(503, "server_error", LOST, "replica_lost", Retry_After="1")

    async def _through(self, servers: Any, request: Request) -> fastapi.Response:
        parts = servers.forward.remote(request)
        status, headers = await anext(parts)
        stream = any(n.lower() == "content-type" and v.startswith("text/event-stream") for n, v in headers)
        if stream:
            # Until its first piece is here another replica can still answer.
            first = await anext(parts, b"")
            response: fastapi.Response = fastapi.responses.StreamingResponse(rest(first, parts), status)
        else:
            response = fastapi.Response(b"".join([part async for part in parts]), status)
        lengths = [pair for pair in response.raw_headers if pair[0] == b"content-length"]
        response.raw_headers = [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in headers] + lengths
        return response
