"""A TCP proxy in user space that makes the network bad on purpose: slow, silent, or cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType

_CHUNK_BYTES = 2**16
_ACCEPT_S = 0.1


class Proxy:
    """Forwards 127.0.0.1:``port`` to a target until closed.

    Each direction of a connection has a thread that reads, waits while paused, waits the delay, and
    writes; while one waits, the kernel's buffers fill and the sender feels it, as on a real network.
    ``_changed`` guards the connections and the two settings.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self._target = (target_host, target_port)
        self._changed = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._paused = False
        self._refusing = False
        self._delay_s = 0.0
        self._closed = False
        self.forwarded_bytes = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_ACCEPT_S)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """``host:port`` to connect to."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break every connection at once, and every new one until :meth:`resume`."""
        with self._changed:
            self._refusing = True
            for connection in self._connections:
                _shut(connection)
            self._changed.notify_all()

    def pause(self) -> None:
        """Forward nothing, in either direction, but keep the connections."""
        with self._changed:
            self._paused = True

    def delay(self, seconds: float) -> None:
        """Hold each chunk of up to 64 KiB back for so long: a slow network."""
        with self._changed:
            self._delay_s = seconds

    def resume(self) -> None:
        """Forward as a good network does."""
        with self._changed:
            self._paused = self._refusing = False
            self._delay_s = 0.0
            self._changed.notify_all()

    def close(self) -> None:
        """Cut everything and stop listening. Idempotent."""
        self.cut()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(5.0)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        with self._listener:
            while not self._closed:
                try:
                    near, _ = self._listener.accept()
                except TimeoutError:
                    continue
                self._connect(near)

    def _connect(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._target, timeout=1.0)
        except OSError:
            near.close()
            return
        near.settimeout(None)
        far.settimeout(None)
        with self._changed:
            if self._refusing or self._closed:
                near.close()
                far.close()
                return
            self._connections |= {near, far}
        for source, sink in ((near, far), (far, near)):
            threading.Thread(
                target=self._forward, args=(source, sink), name="proxy-forward", daemon=True
            ).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while chunk := source.recv(_CHUNK_BYTES):
                with self._changed:
                    self._changed.wait_for(lambda: not self._paused or self._refusing)
                    if self._delay_s:
                        self._changed.wait_for(lambda: self._refusing, self._delay_s)
                sink.sendall(chunk)
                self.forwarded_bytes += len(chunk)
        except OSError:
            pass
        finally:
            with self._changed:
                self._connections.discard(source)
            _shut(sink)
            source.close()


def _shut(connection: socket.socket) -> None:
    """Wake whoever reads from it; its own thread closes it."""
    with suppress(OSError):  # already gone
        connection.shutdown(socket.SHUT_RDWR)
