"""gRPC health (grpc.health.v1) on threads of its own: it answers however busy the service is."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

SERVICE = health.SERVICE_NAME
_THREADS = 2


class _Pooled:
    """A method that gRPC runs in ``pool`` instead of the server's own (it looks for these attributes)."""

    def __init__(self, method: Callable[..., Any], pool: ThreadPoolExecutor, *, non_blocking: bool) -> None:
        self._method = method
        self.experimental_thread_pool = pool
        self.experimental_non_blocking = non_blocking

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._method(*arguments, **named)


class Health:
    """Serving or not, for the server as a whole and for each of its services by full name."""

    def __init__(self, service_names: tuple[str, ...], *, always: tuple[str, ...] = ()) -> None:
        """``always``: names that are serving whatever the service does."""
        self._names = ("", *service_names)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="health")
        self._servicer = health.HealthServicer(experimental_non_blocking=True)
        for name in always:
            self._servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        self.set_serving(False)

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """What a server has to be given."""
        serializers: dict[str, Any] = {
            "request_deserializer": health_pb2.HealthCheckRequest.FromString,
            "response_serializer": health_pb2.HealthCheckResponse.SerializeToString,
        }
        check = _Pooled(self._servicer.Check, self._pool, non_blocking=False)
        watch = _Pooled(self._servicer.Watch, self._pool, non_blocking=True)
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(check, **serializers),
                "Watch": grpc.unary_stream_rpc_method_handler(watch, **serializers),
            },
        )

    def set_serving(self, serving: bool) -> None:
        """Answer SERVING or NOT_SERVING from now on."""
        kinds = health_pb2.HealthCheckResponse
        for name in self._names:
            self._servicer.set(name, kinds.SERVING if serving else kinds.NOT_SERVING)

    def close(self) -> None:
        """End its threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
