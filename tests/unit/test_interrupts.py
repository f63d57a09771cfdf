"""Ctrl-C once and twice, and nohup."""

from __future__ import annotations

import os
import signal

from headrace.local.interrupts import Interrupts


def test_the_first_signal_asks_for_a_drain_and_the_second_for_a_hard_stop() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        assert not interrupts.drain
        os.kill(os.getpid(), signal.SIGTERM)
        assert (interrupts.drain, interrupts.hard, interrupts.reason) == (True, False, "SIGTERM")
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.hard
        assert (interrupts.reason, interrupts.hard_reason) == ("SIGTERM", "Ctrl-C again")
    assert signal.getsignal(signal.SIGTERM) == before


def test_ctrl_c_is_called_by_its_name() -> None:
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
    assert interrupts.reason == "Ctrl-C"


def test_while_the_run_ends_by_itself_one_signal_is_a_hard_stop() -> None:
    with Interrupts() as interrupts:
        interrupts.draining()
        assert not interrupts.hard
        os.kill(os.getpid(), signal.SIGINT)
        assert (interrupts.hard, interrupts.hard_reason) == (True, "Ctrl-C")


def test_an_ignored_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupts.drain
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
