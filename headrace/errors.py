"""Errors that carry a sentence for the person in front of the screen."""

from __future__ import annotations

from collections.abc import Sequence


class HeadraceError(Exception):
    """Base of all errors that Headrace raises on purpose. The message is for people."""


class ConfigurationError(HeadraceError):
    """The configuration can't be used. Holds every problem at once; the command line exits with 2.

    Each problem is one sentence that starts with the dotted path it is about.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class UnsupportedSpaceError(ConfigurationError):
    """An observation or action space that no policy of ours can handle."""

    def __init__(self, sentence: str) -> None:
        super().__init__([sentence])


class EnvironmentFaultError(HeadraceError):
    """One lane failed too often in a row; the sampler ends with this reason."""


class NonFiniteError(HeadraceError):
    """NaN or infinity where there must be none; names what and where."""


class HandshakeError(HeadraceError):
    """The two ends of a connection don't belong together; says what differs. Retrying can't help."""


class CodecError(HeadraceError):
    """Received bytes are not what they claim to be; says where they stop making sense."""


class ChecksumError(CodecError):
    """Received bytes were altered on the way."""


class InvalidDataError(HeadraceError):
    """The peer sent something that the contract forbids; says what."""


class ExhaustedError(HeadraceError):
    """A limit that protects this process is reached (streams, bytes); try again when others have left."""


class UnavailableError(HeadraceError):
    """The peer is draining or can't be reached; retrying helps."""


class CredentialsError(UnavailableError):
    """The two ends don't accept each other's credentials (certificate, token).

    Retrying helps once they are renewed, so it is done slowly, and said again and again.
    """


class FencedError(HeadraceError):
    """The update does not go on from the newest version. Starting again from that one helps."""


class BeginAgainError(HeadraceError):
    """This process has to begin anew, from its configuration on: it has lost its place in the run."""


class RunFailedError(HeadraceError):
    """The run can't go on. The command line exits with 1 and this as its last line."""
