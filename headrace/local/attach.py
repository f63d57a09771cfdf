"""Looking at a run from outside, by its folder: is it going on, and what does it say of itself?"""

from __future__ import annotations

import contextlib
import fcntl
from collections import Counter
from collections.abc import Iterator

import psutil

from headrace.clients.run import RunClient
from headrace.config.digest import config_digest
from headrace.config.load import load_config
from headrace.config.sections import Config
from headrace.errors import ConfigurationError
from headrace.events import read_events
from headrace.local.run_folder import RunFolder, not_a_run
from headrace.local.security import credentials_of
from headrace.local.supervisor import ProcessStatus
from headrace.registry import ServiceRecord, read_records
from headrace.rpc.handshake import Handshake


def require_run(folder: RunFolder) -> Config:
    """The run's configuration; ConfigurationError in words if the folder isn't that of a run."""
    if problems := not_a_run(folder, "RUN"):
        raise ConfigurationError(problems)
    return load_config(folder.config)


def is_running(folder: RunFolder) -> bool:
    """Whether a launcher works in the folder right now."""
    lock = folder.path / ".lock"
    if not lock.exists():
        return False
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
    return False


@contextlib.contextmanager
def connect(folder: RunFolder, config: Config) -> Iterator[RunClient | None]:
    """A client of the run's paramserver, None if it has none; closed at the end."""
    record = next((r for r in live_records(folder) if r.service == "paramserver" and r.address), None)
    if record is None:
        yield None
        return
    handshake = Handshake(run_id=folder.run_id, config_digest=config_digest(config), peer="headrace")
    client = RunClient(record.address, handshake, credentials=credentials_of(config, folder))
    try:
        yield client
    finally:
        client.close()


def live_records(folder: RunFolder) -> list[ServiceRecord]:
    """Records of services whose process is there."""
    return [record for record in read_records(folder.path) if psutil.pid_exists(record.pid)]


def statuses(folder: RunFolder) -> list[ProcessStatus]:
    """The services that listen, as the launcher's view shows them."""
    restarts = Counter(
        event.get("process") for event in read_events(folder.path) if event.get("kind") == "restart"
    )
    return [
        ProcessStatus(
            name=record.name,
            service=record.service,
            pid=record.pid,
            restarts=restarts[record.name],
            given_up=False,
        )
        for record in live_records(folder)
    ]
