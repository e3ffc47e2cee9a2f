"""The two ends of a lane of shared memory, in one process; what tests put in. Imported by procs: no pytest here."""

import numpy as np

from roost._roost import SegmentMap, SegmentPool

MIB = 1 << 20
SENDER, RECEIVER = 11, 22


class Lane:
    """Both ends in one process: what the data and control lanes do between two."""

    def __init__(self, pool=None, segments=None, receiver=RECEIVER):
        self.pool = pool or SegmentPool()
        self.segments = segments or SegmentMap()
        self.receiver = receiver

    def reach(self, part):
        way = part.way(self.receiver)
        if isinstance(way, int):
            try:
                self.segments.add(SENDER, part.segment, part.segment_bytes, way)
            except OSError:
                self.pool.answered(self.receiver, part.segment, ok=False)
            else:
                self.pool.answered(self.receiver, part.segment, ok=True)
            way = part.way(self.receiver)
        return way

    def send(self, *buffers):
        """The parts as the receiver gets them."""
        received = []
        for part in self.pool.capture([memoryview(buffer).cast("B") for buffer in buffers]):
            if isinstance(part, (bytes, bytearray)):
                received.append(part)
            elif self.reach(part) == "ready":
                part.hold(self.receiver)
                received.append(self.segments.view(part.segment, part.generation, part.offset, part.length))
            else:
                received.append(part.tobytes())
        return received

    def settle(self):
        """Pass on what each side has to tell the other."""
        notes = self.segments.drain_released()
        for _, segment, generation, retire in notes:
            self.pool.released(self.receiver, segment, generation, retire)
        for _, segment in self.pool.drain_forgotten():
            self.segments.forget(segment)
        return notes


def figures(seed, size=2 * MIB):
    block = np.random.default_rng(seed).integers(0, 255, 65_521, np.uint8)  # a prime: no two pages are alike
    return np.resize(block, size)
