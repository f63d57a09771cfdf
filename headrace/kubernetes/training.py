"""Apply a configuration to a cluster and follow the run until it has ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from headrace.clients.run import RunClient
from headrace.errors import HeadraceError, UnavailableError
from headrace.kubernetes.kubectl import Kubectl
from headrace.rpc.credentials import Credentials
from headrace.rpc.handshake import Handshake
from headrace.types import LedgerGlance, RunView

PARAMSERVER = "service/paramserver"
PORT = 7000
START_DEADLINE_S = 600.0
"""Seconds until the paramserver must have answered once: images may have to be pulled."""
_POLL_S = 1.0
_PAUSE_S = 2.0
_TIMEOUT_S = 5.0

OnNews = Callable[[RunView, LedgerGlance], None]


def follow(
    kubectl: Kubectl,
    on_news: OnNews,
    *,
    on_silence: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[RunView, LedgerGlance]:
    """Tell ``on_news`` about once a second how the run stands; returns how it ended.

    The paramserver may go away and come back: ``on_silence`` hears why it can't be reached, and it is
    tried again. HeadraceError: it has not answered once within ``START_DEADLINE_S`` seconds.
    """
    deadline = clock() + START_DEADLINE_S
    answered = False
    while True:
        try:
            with kubectl.forward(PARAMSERVER, PORT) as forward:
                client = RunClient(
                    f"127.0.0.1:{forward.port}",
                    Handshake("", "", peer="headrace"),
                    credentials=Credentials.of_environment(os.environ),
                )
                try:
                    while True:
                        view, ledger = client.state(timeout_s=_TIMEOUT_S), client.ledger(timeout_s=_TIMEOUT_S)
                        answered = True
                        on_news(view, ledger)
                        if view.status.ended:
                            return view, ledger
                        sleep(_POLL_S)
                finally:
                    client.close()
        except UnavailableError as error:
            if not answered and clock() > deadline:
                raise HeadraceError(
                    f"the paramserver did not answer within {START_DEADLINE_S:.0f} s: {error}"
                ) from error
            on_silence(str(error))
            sleep(_PAUSE_S)
