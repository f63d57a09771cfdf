"""Whatever order versions come and readers read in: few versions in memory, nobody is served a mixture."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from relaying import make_whole

from headrace.clients.relaying import WholeVersion
from headrace.types import PolicyVersion
from services.paramserver.relay.shelf import Reading, Shelf

READERS = st.integers(0, 4)


class ShelfMachine(RuleBasedStateMachine):
    """Five readers that read at will, and versions that come at will."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 0
        self.shelf = Shelf()
        self.versions: dict[PolicyVersion, WholeVersion] = {}
        self.reading: dict[int, tuple[Reading, list[bytes]]] = {}
        self.had: dict[int, PolicyVersion] = {}

    @initialize(limit=st.integers(2, 4))
    def set_up(self, limit: int) -> None:
        self.limit, self.shelf = limit, Shelf(limit)

    @rule(step=st.integers(-1, 3), pieces=st.integers(0, 3))
    def come(self, step: int, pieces: int) -> None:
        newest = self.shelf.newest
        whole = make_whole(max(0, (0 if newest is None else newest.number) + step), pieces=pieces)
        if newest is None or whole.version > newest:
            self.versions[whole.version] = whole
        self.shelf.put(whole)

    @precondition(lambda self: self.shelf.newest is not None)
    @rule(reader=READERS)
    def begin(self, reader: int) -> None:
        if reader not in self.reading and self.had.get(reader) != self.shelf.newest:
            self.reading[reader] = (self.shelf.read(), [])

    @rule(reader=READERS)
    def read(self, reader: int) -> None:
        if reader not in self.reading:
            return
        reading, got = self.reading[reader]
        message = reading.next()
        if message is not None:
            got.append(message)
            return
        if reading.whole:
            assert tuple(got) == self.versions[reading.version].messages
            assert reader not in self.had or reading.version > self.had[reader]
            self.had[reader] = reading.version
        else:
            assert reading.version != self.shelf.newest
        self.leave(reader)

    @rule(reader=READERS)
    def leave(self, reader: int) -> None:
        if reader in self.reading:
            self.reading.pop(reader)[0].close()

    @invariant()
    def only_so_many_are_in_memory(self) -> None:
        newest = self.shelf.newest
        held = {reading.version for reading, _ in self.reading.values() if reading._held.messages}
        held |= {newest} if newest else set()
        assert len(held) <= self.limit
        assert self.shelf.nbytes == sum(self.versions[version].nbytes for version in held)


TestShelf = ShelfMachine.TestCase
