"""What must fit together before a stream is opened: fragments, batches and the buffer."""

from __future__ import annotations

import math

from headrace.config.choices import batch_steps_of_exchange, on_policy
from headrace.config.sections import Config
from headrace.errors import ConfigurationError, ExhaustedError, HandshakeError, InvalidDataError
from headrace.flow.watermarks import Watermarks


def fragment_transitions(config: Config) -> int:
    """Nominal transitions of a fragment: T * B."""
    return config.environment.lanes * config.sampler.fragment_length


def fragments_per_update(config: Config) -> int:
    """Fragments of one update."""
    return max(1, on_policy(config).batch_steps // fragment_transitions(config))


def batch_fragments(config: Config) -> int:
    """Most fragments that are taken at once: those of all updates between two versions."""
    return max(1, batch_steps_of_exchange(config) // fragment_transitions(config))


def check_terms(config: Config, *, fragment_bytes: int, transitions: int, streams: int) -> None:
    """Refuse, in words, fragments that are not this run's and what could come to a standstill.

    The pipe can always go on if one update fits below the line where throttling ends, and beside it one
    fragment of each of ``streams`` open streams. Raises InvalidDataError, HandshakeError,
    ConfigurationError (also a run with ``sampler.count`` samplers could not work) or ExhaustedError.
    """
    if fragment_bytes < 1:
        raise InvalidDataError(f"fragments of {fragment_bytes} bytes")
    if transitions != fragment_transitions(config):
        raise HandshakeError(
            f"fragments of {transitions} transitions, but this run's have {fragment_transitions(config)}"
        )
    stream, size = config.stream, batch_fragments(config)
    release = Watermarks(stream.high_watermark, stream.low_watermark).release
    needed = math.ceil(fragment_bytes * max(size / release, size + config.sampler.count))
    if needed > stream.capacity_bytes:
        raise ConfigurationError(
            [
                f"stream.capacity_bytes: {stream.capacity_bytes} bytes can't hold one update ({size} "
                f"fragments of {fragment_bytes} bytes) below the high watermark and one more fragment "
                f"a sampler; at least {needed} are needed"
            ]
        )
    needed = fragment_bytes * (size + streams)
    if needed > stream.capacity_bytes:
        raise ExhaustedError(
            f"stream.capacity_bytes: {stream.capacity_bytes} bytes are too few for {streams} streams; "
            f"at least {needed} are needed"
        )
