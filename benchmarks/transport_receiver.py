"""The receiving process of the transport benchmark: one of several roles, driven line by line over stdin.

It prints its address when it is ready, then answers each line with the CPU seconds it has used so far.
"""

from __future__ import annotations

import mmap
import os
import resource
import sys
import threading
from collections.abc import Iterator

import grpc
import numpy as np

from benchmarks.transport_data import DIGEST, Workload, make_config, make_spec
from headrace.envs.validation import FragmentCheck
from headrace.rpc.credentials import Credentials, use_credentials
from headrace.rpc.fragments import TrajectoryServicer
from headrace.rpc.handshake import Handshake
from headrace.rpc.server import serve
from headrace.types import PolicyVersion
from services.learner.intake import Intake

BARE_METHOD = "/bench.Bare/Put"
COPY_HEAD = 4096  # of the memory for plain copies: one flag a place, then the places
COPY_PLACES = 4


def cpu_seconds() -> float:
    """CPU seconds of this process so far, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def answer_marks(address: str) -> None:
    """Say where we are, then answer until the parent hangs up."""
    print(address, flush=True)
    for _ in sys.stdin:
        print(cpu_seconds(), flush=True)


def run_bare() -> None:
    """Bare grpcio: a client stream of bytes, counted and thrown away."""

    def put(messages: Iterator[bytes], _context: grpc.ServicerContext) -> bytes:
        return str(sum(len(message) for message in messages)).encode()

    method = grpc.stream_unary_rpc_method_handler(put)
    handler = grpc.method_handlers_generic_handler("bench.Bare", {"Put": method})
    server = serve(address="127.0.0.1:0", handlers=[handler], max_streams=4)
    answer_marks(server.address)
    server.stop(0.0)


def run_pipe(workload: Workload) -> None:
    """Our learner's door as it is: decode, full check, credit, accounts; the trainer only settles."""
    config = make_config(workload)
    intake = Intake(config)
    intake.restore([], PolicyVersion(1, 0))
    servicer = TrajectoryServicer(
        intake,
        Handshake(run_id="bench", config_digest=DIGEST),
        max_fragment_bytes=2**26,
        check=FragmentCheck(make_spec(workload), config.validation),
    )
    server = serve(address="127.0.0.1:0", handlers=[servicer.handler()], max_streams=4)
    done = threading.Event()

    def settle() -> None:
        number = 0
        while not done.is_set():
            taken = intake.next_batch(timeout_s=0.2)
            if taken is not None:
                number += 1
                intake.accounts(including=taken)
                intake.commit(taken, PolicyVersion(1, number))

    trainer = threading.Thread(target=settle, daemon=True)
    trainer.start()
    answer_marks(server.address)
    done.set()
    intake.stop()
    server.stop(0.0)


def run_copy(path: str, nbytes: int) -> None:
    """Copy out of shared memory whatever comes, until the parent hangs up."""
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), COPY_HEAD + COPY_PLACES * nbytes)
    content = np.frombuffer(memory, np.uint8)
    target = np.empty(nbytes, np.uint8)

    def copy() -> None:
        turn = 0
        while True:
            begin = COPY_HEAD + turn * nbytes
            while not memory[turn]:
                os.sched_yield()
            target[:] = content[begin : begin + nbytes]
            memory[turn] = 0
            turn = (turn + 1) % COPY_PLACES

    threading.Thread(target=copy, daemon=True).start()
    answer_marks("ready")


def take_credentials() -> None:
    """Use what the variables name, as a service does."""
    use_credentials(Credentials.of_environment(os.environ))


def main(role: str, *arguments: str) -> None:
    """Play one role. HEADRACE_TLS, HEADRACE_TOKEN_FILE: with these credentials."""
    take_credentials()
    if role == "bare":
        run_bare()
    elif role == "copy":
        run_copy(arguments[0], int(arguments[1]))
    else:
        run_pipe(Workload.named(role))


if __name__ == "__main__":
    main(*sys.argv[1:])
