"""Only who has the credentials gets in, and they are renewed while everything goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paramserving import eventually, make_handshake, make_parameters, make_report, make_settings, serving
from relaying import relaying
from securing import Keeper, identity

from headrace import certificates
from headrace.clients.parameters import PublishClient, SnapshotWatcher
from headrace.clients.run import RunClient
from headrace.errors import CredentialsError, HeadraceError, UnavailableError
from headrace.rpc.channel import open_channel
from headrace.rpc.credentials import Credentials
from headrace.types import PolicyVersion, RunView
from services.paramserver.config import Settings

WAIT_S = 60.0
NOTHING = Credentials()


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(tmp_path / "credentials")


@pytest.fixture(params=["paramserver", "relay"])
def serve_with(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Credentials], str]]:
    """Serves the run with some credentials: on threads, and in an event loop. Returns the address."""
    with ExitStack() as stack:

        def start(credentials: Credentials) -> str:
            settings = make_settings(tmp_path)
            stack.enter_context(identity(credentials))
            paramserver = stack.enter_context(serving(settings))
            if request.param == "paramserver":
                return paramserver.server.address
            return stack.enter_context(relaying(settings, paramserver.server.address)).address

        yield start


def ask(address: str, credentials: Credentials, tmp_path: Path) -> RunView:
    client = RunClient(address, make_handshake(make_settings(tmp_path)), credentials=credentials)
    try:
        return client.state(timeout_s=WAIT_S)
    finally:
        client.close()


def answers(address: str, credentials: Credentials, tmp_path: Path) -> bool:
    return ask(address, credentials, tmp_path).status.phase == "starting"


@pytest.mark.parametrize(("tls", "token"), [(True, True), (True, False), (False, True)])
def test_who_has_the_credentials_is_served(
    serve_with: Callable[[Credentials], str], keeper: Keeper, tmp_path: Path, tls: bool, token: bool
) -> None:
    address = serve_with(keeper.credentials(tls=tls, token=token))
    assert answers(address, keeper.credentials(tls=tls, token=token), tmp_path)


def test_without_tls_there_is_no_connection_and_the_error_says_what_it_may_be(
    serve_with: Callable[[Credentials], str], keeper: Keeper, tmp_path: Path
) -> None:
    address = serve_with(keeper.credentials(token=False))
    with pytest.raises(UnavailableError, match="demands TLS, or refuses our certificate"):
        ask(address, NOTHING, tmp_path)


def test_a_certificate_of_another_ca_is_refused(
    serve_with: Callable[[Credentials], str], keeper: Keeper, tmp_path: Path
) -> None:
    address = serve_with(keeper.credentials(token=False))
    stranger = Keeper(tmp_path / "stranger")
    stranger.trust(keeper.ca)  # it believes the server; the server doesn't believe it
    with pytest.raises(UnavailableError, match="refuses our certificate"):
        ask(address, stranger.credentials(token=False), tmp_path)


def test_a_server_of_another_ca_is_not_believed(
    serve_with: Callable[[Credentials], str], keeper: Keeper, tmp_path: Path
) -> None:
    address = serve_with(keeper.credentials(token=False))
    stranger = Keeper(tmp_path / "stranger")
    with pytest.raises(CredentialsError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(address, stranger.credentials(token=False), tmp_path)


def test_a_server_without_tls_is_not_spoken_to(
    serve_with: Callable[[Credentials], str], keeper: Keeper, tmp_path: Path
) -> None:
    address = serve_with(NOTHING)
    with pytest.raises(CredentialsError, match="TLS failed"):
        ask(address, keeper.credentials(token=False), tmp_path)


def test_without_a_token_or_with_another_one_a_call_is_unauthenticated(
    serve_with: Callable[[Credentials], str], keeper: Keeper, tmp_path: Path
) -> None:
    address = serve_with(keeper.credentials(tls=False))
    with pytest.raises(CredentialsError, match="demands a token"):
        ask(address, NOTHING, tmp_path)
    stranger = Keeper(tmp_path / "stranger")
    with pytest.raises(CredentialsError, match="doesn't accept the call's token"):
        ask(address, stranger.credentials(tls=False), tmp_path)


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_unary", "stream_stream"])
def test_a_call_without_a_token_ends_before_it_has_said_anything(
    serve_with: Callable[[Credentials], str], keeper: Keeper, kind: str
) -> None:
    methods = {
        "unary_unary": "/headrace.v1.RunService/GetRunState",
        "unary_stream": "/headrace.v1.ParameterService/WatchVersions",
        "stream_unary": "/headrace.v1.ParameterService/PublishVersion",
        "stream_stream": "/headrace.v1.ParameterService/PushGradients",
    }
    address = serve_with(keeper.credentials(tls=False))
    with open_channel(address, NOTHING) as channel:
        over = threading.Event()
        call: Any = channel.stream_stream(methods[kind])(_silent_until(over), timeout=WAIT_S)
        assert call.code() is grpc.StatusCode.UNAUTHENTICATED
        over.set()


def test_health_needs_no_token(serve_with: Callable[[Credentials], str], keeper: Keeper) -> None:
    address = serve_with(keeper.credentials(tls=False))
    with open_channel(address, NOTHING) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
    assert answer.status != health_pb2.HealthCheckResponse.UNKNOWN


def test_ca_certificate_and_token_are_renewed_while_everything_goes_on(
    keeper: Keeper, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path)
    outdated = keeper.copied_to(tmp_path / "outdated")
    with (
        identity(keeper.credentials()),
        serving(settings) as run,
        _watching(run.server.address, settings) as watch,
    ):
        seen = _publish(run.server.address, settings, None)
        assert watch.wait_newer(None, WAIT_S) is not None
        old, new = keeper.ca, certificates.make_ca()
        for step in (
            lambda: keeper.trust(old, new),
            lambda: _next_token(keeper),
            lambda: keeper.take_leaf_of(new),
            lambda: keeper.trust(new),
            lambda: _forget_token(keeper),
        ):
            step()
            before, seen = seen, _publish(run.server.address, settings, seen)
            assert watch.wait_newer(before, WAIT_S) is not None
            assert answers_running(run.server.address, keeper.credentials(), settings)
        assert watch.lost == []
        with pytest.raises(CredentialsError):
            ask(run.server.address, outdated, tmp_path)


def test_a_client_that_was_refused_gets_in_once_its_credentials_are_good(
    keeper: Keeper, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path)
    late = Keeper(tmp_path / "late")
    with identity(keeper.credentials()), serving(settings) as run:
        _publish(run.server.address, settings, None)
        with identity(late.credentials()), _watching(run.server.address, settings) as watch:
            eventually(lambda: bool(watch.lost), "it was refused, and said so")
            assert "TLS failed" in watch.lost[0]
            assert watch.fatal is None
            late.leaf, late.trusted, late.tokens = keeper.leaf, keeper.trusted, keeper.tokens
            late.write_tokens()
            late.write_tls()
            assert watch.wait_newer(None, WAIT_S) is not None


def test_a_half_written_renewal_changes_nothing(keeper: Keeper, tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    credentials = keeper.credentials()
    with identity(credentials), serving(settings) as run:
        (keeper.folder / "tls.crt").write_bytes(certificates.issue(keeper.ca, 1).certificate)
        assert answers(run.server.address, credentials, tmp_path)
        assert credentials.current().generation == 0


class _Watch(SnapshotWatcher):
    """A watch that notes when its stream was lost."""

    lost: list[str]


@contextmanager
def _watching(address: str, settings: Settings) -> Iterator[_Watch]:
    lost: list[str] = []
    watch = _Watch(
        address,
        make_handshake(settings, "sampler-0"),
        on_event=lambda kind, sentence: lost.append(sentence) if kind == "watch_lost" else None,
    )
    watch.lost = lost
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


def _publish(address: str, settings: Settings, base: PolicyVersion | None) -> PolicyVersion:
    client = PublishClient(address, make_handshake(settings))
    number = 0 if base is None else base.number + 1
    try:
        return client.publish(
            base, make_parameters(number), None, make_report(number), (), timeout_s=WAIT_S
        ).version
    finally:
        client.close()


def answers_running(address: str, credentials: Credentials, settings: Settings) -> bool:
    client = RunClient(address, make_handshake(settings), credentials=credentials)
    try:
        return client.state(timeout_s=WAIT_S).status.phase == "running"
    except HeadraceError:
        return False
    finally:
        client.close()


def _next_token(keeper: Keeper) -> None:
    keeper.tokens = [certificates.make_token(), *keeper.tokens]
    keeper.write_tokens()


def _forget_token(keeper: Keeper) -> None:
    keeper.tokens = keeper.tokens[:1]
    keeper.write_tokens()


def _silent_until(over: threading.Event) -> Iterator[bytes]:
    over.wait(WAIT_S)
    yield from ()
