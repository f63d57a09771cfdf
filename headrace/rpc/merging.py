"""What is to be said on one stream, merged: however slow the peer reads, it stays small."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import grpc

from headrace.errors import HeadraceError

Message = TypeVar("Message")


class Mailbox(ABC, Generic[Message]):
    """Messages of many threads to one stream. A subclass says how they merge.

    ``_changed`` guards everything; the subclass's methods are called with it held.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._error: HeadraceError | None = None
        self._ended = False

    def fail(self, error: HeadraceError) -> None:
        """End the stream with ``error``, after what is already to be said."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify()

    def end(self) -> None:
        """The peer has nothing more to say, or is gone."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def take(self, timeout_s: float) -> list[Message] | None:
        """What is to be said now, in order; empty after ``timeout_s`` seconds of nothing; None: hang up.

        Raises the error that the stream ends with.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._ready(), timeout_s)
            messages = self._collect()
            if messages:
                return messages
            if self._error is not None:
                raise self._error
            return None if self._ended else []

    def pause(self, timeout_s: float) -> None:
        """Let more gather for ``timeout_s`` seconds; cut short by what is urgent, and by the end.

        A message costs the same CPU however little it says.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._urgent(), timeout_s)

    @property
    def _over(self) -> bool:
        return self._error is not None or self._ended

    @abstractmethod
    def _ready(self) -> bool:
        """Whether there is something to say."""

    @abstractmethod
    def _collect(self) -> list[Message]:
        """Hand out what is to be said, in order, and forget it."""

    def _urgent(self) -> bool:
        """Whether something can't wait for company."""
        return False


class Newest(Mailbox[Message]):
    """A mailbox in which a message replaces the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self._message: Message | None = None

    def put(self, message: Message) -> None:
        """Say ``message`` as soon as the peer reads. Never blocks."""
        with self._changed:
            self._message = message
            self._changed.notify()

    def _ready(self) -> bool:
        return self._message is not None

    def _collect(self) -> list[Message]:
        message, self._message = self._message, None
        return [] if message is None else [message]


Request = TypeVar("Request")


def listen(
    requests: Iterable[Request],
    take: Callable[[Request], None],
    mailbox: Mailbox[Message],
    *,
    who: str,
    gone: Callable[[], None],
) -> None:
    """Give each request to ``take`` until the peer ends, breaks the contract (HeadraceError), or is gone.

    The mailbox tells the peer why the stream ends. ``gone`` is called at last in any case.
    """
    try:
        for request in requests:
            take(request)
    except HeadraceError as error:
        mailbox.fail(error)
    except grpc.RpcError:
        pass  # cancelled or disconnected: there is nobody to answer
    except Exception as error:
        mailbox.fail(HeadraceError(f"{who} failed to take a message: {error!r}"))
        raise
    finally:
        gone()
        mailbox.end()
