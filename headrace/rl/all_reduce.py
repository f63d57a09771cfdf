"""Gradients averaged among learners as each step is taken, through ``torch.distributed``.

The parameter server says who belongs to a group (see :mod:`headrace.sync.replicas`); the first one's store is
where they meet. Gloo moves what lies in main memory, NCCL what lies on GPUs. Processes are not started by
torch: whoever runs them starts them again, so that of torch's elastic machinery only rendezvous and process
groups are used.
"""

from __future__ import annotations

import datetime
import re
import socket
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed
from torch import Tensor

from headrace.errors import HeadraceError
from headrace.sync.contribution import Group

dist: Any = torch.distributed  # much of what is used here has no types

_MEET_TIMEOUT_S = 10.0  # to connect to a group's store


class GroupBrokenError(HeadraceError):
    """A member of the group is gone, or does not answer. What was begun has to be done again."""


class AllReduce:
    """The peers of a learner in an all-reduce group. Every call may raise GroupBrokenError."""

    def __init__(self, host: str, *, device: str, timeout_s: float) -> None:
        """``host``: the address of this machine at which the others reach it. ``timeout_s``: how long a
        member may take from one step to the next before the group counts as broken."""
        self._host = host
        self._device = torch.device(device)
        self._timeout = datetime.timedelta(seconds=timeout_s)
        # torch's own socket would listen on all of the machine's addresses. It owns the one it is given.
        listening = socket.create_server((host, 0))
        self._port: int = listening.getsockname()[1]
        self._store = dist.TCPStore(
            host,
            self._port,
            is_master=True,
            wait_for_workers=False,
            timeout=self._timeout,
            master_listen_fd=listening.detach(),
        )
        self._group: Any = None
        self._members: Group | None = None
        self._buffer: Tensor | None = None
        self.reduced_bytes = 0
        """Bytes that this learner has handed in to be reduced."""

    @property
    def rendezvous(self) -> str:
        """``host:port`` at which others meet this learner."""
        return f"{self._host}:{self._port}"

    @property
    def group(self) -> Group | None:
        """The group that it belongs to; None: it has none that works."""
        return self._members

    def enter(self, group: Group) -> None:
        """Meet the others and connect to them."""
        self.leave()
        host, _, port = group.rendezvous.rpartition(":")
        try:
            store: Any = self._store
            if group.rank:
                store = dist.TCPStore(
                    host,
                    int(port),
                    is_master=False,
                    wait_for_workers=False,
                    timeout=datetime.timedelta(seconds=_MEET_TIMEOUT_S),
                )
            store = dist.PrefixStore(f"group-{group.generation}", store)
            self._group = self._connect(store, group)
        except (RuntimeError, ValueError) as error:
            raise GroupBrokenError(
                f"group {group.generation} did not come together: {_in_short(error)}"
            ) from error
        self._members = group

    def leave(self) -> None:
        """Have no group any more."""
        self._group = self._members = None

    @torch.no_grad()
    def combine(self, gradients: Tensor, rows: int) -> bool:
        """Average over the rows of all members. False: nobody had any."""
        size = gradients.numel()
        buffer = self._buffer
        if buffer is None or buffer.numel() != size + 1:
            buffer = self._buffer = torch.empty(size + 1, device=gradients.device)
        # A sum of zeros where there are none: 0 times what isn't finite would spread.
        torch.mul(gradients.reshape(-1), rows, out=buffer[:size]) if rows else buffer[:size].zero_()
        buffer[size] = rows
        self._reduce(buffer, dist.ReduceOp.SUM)
        total = float(buffer[size])
        if total == 0.0:
            return False
        gradients.copy_(buffer[:size].view_as(gradients)).div_(total)
        return True

    def agree(self, number: int) -> int:
        """The largest number that any member says."""
        said = torch.tensor([number], dtype=torch.int64, device=self._device)
        self._reduce(said, dist.ReduceOp.MAX)
        return int(said[0])

    def broadcast(self, data: bytes) -> bytes:
        """What the first member says, of any length; the others' ``data`` is not looked at."""
        rank = 0 if self._members is None else self._members.rank
        size = self.agree(len(data) if rank == 0 else 0)
        raw: npt.NDArray[np.uint8] = np.zeros(size, np.uint8)
        if rank == 0:
            raw[:] = np.frombuffer(data, np.uint8)
        tensor = torch.from_numpy(raw).to(self._device)
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._wait(lambda group: group.broadcast([tensor], options))
        return tensor.cpu().numpy().tobytes()

    def _reduce(self, tensor: Tensor, operation: Any) -> None:
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        self._wait(lambda group: group.allreduce([tensor], options))
        self.reduced_bytes += tensor.numel() * tensor.element_size()

    def _wait(self, start: Any) -> None:
        if self._group is None:
            raise GroupBrokenError("there is no group")
        try:
            start(self._group).wait()
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
        except RuntimeError as error:
            number = 0 if self._members is None else self._members.generation
            self.leave()
            raise GroupBrokenError(f"group {number} is broken: {_in_short(error)}") from error

    def _connect(self, store: Any, group: Group) -> Any:
        if self._device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            return dist.ProcessGroupNCCL(store, group.rank, group.size, options)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._host)]
        options._timeout = self._timeout
        return dist.ProcessGroupGloo(store, group.rank, group.size, options)


def _in_short(error: Exception) -> str:
    """What torch says, without the place in its sources and its advice."""
    first = (str(error) or repr(error)).splitlines()[0]
    return re.sub(r"^\[[^\]]*\] ", "", first).partition(". This is typically")[0]
