"""`graft.ray.app`: `graft serve` as an application of Ray Serve."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graft.errors import InvalidArgument
from graft.ray import _needs


def app(
    models: Mapping[str, str | os.PathLike[str]] | Sequence[str | os.PathLike[str]],
    *,
    rows: int = 8,
    num_cpus: float = 1,
    replicas: int | tuple[int, int] = 1,
    autoscaling: Mapping[str, Any] | None = None,
    ingresses: int = 1,
    models_per_replica: int | None = None,
    arguments: Sequence[str] = (),
    max_queued: int = 256,
    tries: int = 5,
    bound: float = 1.25,
    max_body_bytes: int = 32 << 20,
) -> Any:
    """An application of Ray Serve with the routes and answers of `graft serve`.

        serve.run(graft.ray.app(models=["qwen3.pte"], num_cpus=8, replicas=(1, 16)))

    models: packages (.pte), called as their files without the suffix, or {name: package}; at the same path on each host.
        The first answers requests that name none.
    rows: texts of a model that a replica computes at once, and the queue that autoscaling aims at; twice as many requests go to
        one replica at most.
    num_cpus: of a replica, whole: its threads.
    replicas: their number, or (least, most): as many as the requests that wait and run need.
    autoscaling: more of Serve's AutoscalingConfig, such as {"downscale_delay_s": 60}, where replicas are (least, most).
    ingresses: replicas of the ingress.
    models_per_replica: that a replica has loaded at once; others are loaded when they are asked for, and the one unused longest
        goes. None: all.
    arguments: more of the command line `graft serve`, such as ["--api-keys", "keys.txt"].
    max_queued: requests that wait in an ingress; beyond, they get 429 with Retry-After.
    tries: replicas that a request is given to before the answer is 503 with Retry-After, where each ended before it answered.
    bound: how many times the mean load a replica may have, if that is more than half of rows, before a prompt whose beginning it
        knows goes to another.
    max_body_bytes: of a request; beyond, it gets 413.

    Raises `graft.InvalidArgument` for what cannot be.
    """
    if isinstance(models, Mapping):
        named = {name: os.path.abspath(path) for name, path in models.items()}
    else:
        named = {Path(path).stem: os.path.abspath(path) for path in models}
        if len(named) < len(models):
            raise InvalidArgument(f"models: two of {[str(path) for path in models]} have one name: give {{name: package}}")
    if not named:
        raise InvalidArgument("models: must name a package, is empty")
    least, most = (replicas, replicas) if isinstance(replicas, int) else replicas
    loaded = len(named) if models_per_replica is None else models_per_replica
    counts = {"rows": rows, "num_cpus": num_cpus, "ingresses": ingresses, "models_per_replica": loaded, "tries": tries}
    for name, value in {**counts, "replicas": least}.items():
        if value < 1:
            raise InvalidArgument(f"{name} must be at least 1, got {value}")
    if num_cpus != int(num_cpus):
        raise InvalidArgument(f"num_cpus must be whole, got {num_cpus}")
    if most < least:
        raise InvalidArgument(f"replicas must be a number or (least, most), got {replicas}")
    if autoscaling and most == least:
        raise InvalidArgument(f"autoscaling needs replicas as (least, most), got {replicas}")
    if not bound > 1:
        raise InvalidArgument(f"bound must be above 1, got {bound}")

    serve = _needs.package("ray.serve", "graft.ray.app")
    config = _needs.package("ray.serve.config", "graft.ray.app")
    from graft.ray import deployments

    router = config.RequestRouterConfig(
        request_router_class="graft.ray.router.PrefixAffinityRouter", request_router_kwargs={"bound": bound, "free": max(1, rows // 2)}
    )
    scaling: dict[str, Any] = {"num_replicas": least}
    if most > least:
        asked = {"target_ongoing_requests": rows, **(autoscaling or {})}
        scaling = {"autoscaling_config": {**asked, "min_replicas": least, "max_replicas": most}}
    server = serve.deployment(
        name="server",
        ray_actor_options={"num_cpus": num_cpus},
        max_ongoing_requests=2 * rows,
        max_queued_requests=max_queued,
        request_router_config=router,
        graceful_shutdown_timeout_s=60,
        health_check_period_s=2,
        **scaling,
    )(deployments.sized(loaded) if loaded < len(named) else deployments.Server)
    ingress = serve.deployment(
        name="ingress", num_replicas=ingresses, ray_actor_options={"num_cpus": 0}, max_ongoing_requests=1000
    )(deployments.Ingress)
    servers = server.bind(named, ["--rows", str(rows), *arguments], loaded)
    return ingress.bind(servers, list(named), loaded, tries, max_body_bytes)


__all__ = ["app"]
