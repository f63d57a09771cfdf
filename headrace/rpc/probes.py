"""Health on a port of its own, for whoever watches over the process (Kubernetes' native gRPC probes).

It is always plain and without credentials, since those probes have none, and it answers on threads of its
own, so that a busy core or a full pipe can't make it fail.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2

from headrace.errors import ConfigurationError
from headrace.rpc.drain import Drain
from headrace.rpc.guard import SilenceGuard
from headrace.rpc.health import Health
from headrace.rpc.server import check_bindable, port_taken, server_options

LIVENESS = "liveness"
"""Serving as long as the process answers at all."""
READINESS = "readiness"
"""Serving from the moment the service does its work until it begins to drain. So is the empty name."""
STARTUP = "startup"
"""The same as liveness, by the name that a startup probe asks for."""

_MAX_CALLS = 64
_GRACE_S = 0.2


class Probes:
    """Serves ``grpc.health.v1`` until :meth:`close`. ``port`` is the bound one."""

    def __init__(self, host: str, port: int) -> None:
        """Listen; alive from now on, ready later. ConfigurationError: the port is taken."""
        check_bindable(host, port, "--health-port")
        self._health = Health((READINESS,), always=(LIVENESS, STARTUP))
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="probes")
        self._silence = SilenceGuard()
        self._server = grpc.server(
            self._pool,
            interceptors=[self._silence],
            options=server_options(),
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        self._server.add_generic_rpc_handlers((self._health.handler(),))
        try:
            self.port = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise ConfigurationError([port_taken("--health-port", host, port)]) from error
        self._server.start()

    def ready(self) -> None:
        """The service does its work now."""
        self._health.set_serving(True)

    def follow(self, drain: Drain) -> None:
        """Not ready from the moment that ``drain`` is requested."""
        drain.when_requested(lambda: self._health.set_serving(False))

    def close(self) -> None:
        """Listen no more."""
        self._server.stop(_GRACE_S).wait(_GRACE_S * 5)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._silence.close()
        self._health.close()


def ask(address: str, name: str = READINESS, *, timeout_s: float = 2.0) -> bool:
    """Whether the health service at ``address`` (host:port, plain) says that ``name`` is serving."""
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary(
            f"/{health.SERVICE_NAME}/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = check(health_pb2.HealthCheckRequest(service=name), timeout=timeout_s)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
