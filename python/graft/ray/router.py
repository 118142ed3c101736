"""Ray Serve's request router with `Affinity`: named in a deployment's RequestRouterConfig, and nowhere imported."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import MultiplexMixin, RequestRouter

from graft.ray.affinity import Affinity
from graft.ray.requests import Request


class PrefixAffinityRouter(MultiplexMixin, RequestRouter):
    """A `Request` goes to the replica that computed the longest part of its prompt, within a bound on its load; of several
    models to one that has its model, where there is one."""

    def initialize_state(self, **settings: Any) -> None:
        self._affinity = Affinity(**settings)

    def _load(self, replica: str) -> int:
        return self._replica_queue_len_cache.get(self._by_name[replica]) or 0

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Ranks: the chosen replica, then the others by load, so that one that does not answer costs a try and no more."""
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas] if candidate_replicas else []
        pending_request.routing_context.should_backoff = True
        among = candidate_replicas
        if model := pending_request.metadata.multiplexed_model_id:
            ids = self.apply_multiplex_routing(pending_request)
            among = [replica for replica in among if replica.replica_id in ids] or among
        self._by_name = {replica.replica_id.unique_id: replica.replica_id for replica in among}
        request = next((value for value in pending_request.args if isinstance(value, Request)), None)
        ordered = sorted(among, key=lambda replica: self._load(replica.replica_id.unique_id))
        if request is None or not request.prompt:
            return [[replica] for replica in ordered]
        self._affinity.update(self._by_name)
        total = sum(self._load(name) for name in self._by_name)
        chosen = self._affinity.choose(request.prompt, self._load, total, request.talk)
        return [[r] for r in sorted(ordered, key=lambda replica: replica.replica_id.unique_id != chosen)]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """Remembers where the prompt is computed."""
        request = next((value for value in pending_request.args if isinstance(value, Request)), None)
        if request is not None and request.prompt:
            self._affinity.record(request.prompt, replica_id.unique_id)
