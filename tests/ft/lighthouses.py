"""Replicas under torchft's own quorum and manager, which take states by Roost's reads."""

from datetime import timedelta

from roost import Actor, context, endpoint
from roost.ft.transport import StateTransport

LIMIT = timedelta(seconds=30)


class Replica(Actor):
    @endpoint
    def begin(self, shelves, lighthouse):
        import torch
        import torch.distributed as dist
        from torchft import Manager, ProcessGroupGloo

        number = context().point["replicas"]
        self.weights = torch.full((100_000,), float(number))
        self.taken = []
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=LIMIT), min_replica_size=1, load_state_dict=self.load,
            state_dict=lambda: {"weights": self.weights}, replica_id=f"replica_{number}", store_addr="127.0.0.1",
            store_port=self.store.port, rank=0, world_size=1, lighthouse_addr=lighthouse, hostname="127.0.0.1", timeout=LIMIT,
            quorum_timeout=LIMIT, connect_timeout=LIMIT, use_async_quorum=False,
            checkpoint_transport=StateTransport(shelves, context().point),
        )  # fmt: skip

    def load(self, state):
        self.taken.append(state["weights"][0].item())
        self.weights = state["weights"]

    @endpoint
    def train(self, together, steps):
        """Count so many steps that as many replicas take together; the weights, and what was taken of a peer."""
        while steps:
            self.manager.start_quorum()
            if self.manager.should_commit():
                self.weights += 1
                steps -= self.manager.num_participants() == together
        return self.weights.unique().tolist(), self.taken

    @endpoint
    def end(self):
        self.manager.shutdown(wait=False)
