"""Where the ranks of one machine meet: a store in the agent that no other machine reaches."""

import socket
import uuid

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

HERE = "127.0.0.1"


class LocalRendezvous(RendezvousHandler):
    """The meeting of one agent, which need not wait for others (docs/decisions/0021)."""

    def __init__(self) -> None:
        self._run_id = str(uuid.uuid4())
        listener = socket.create_server((HERE, 0))
        self._port: int = listener.getsockname()[1]
        # Left to itself the store listens on every interface.
        self._store = TCPStore(
            HERE, self._port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    def get_backend(self) -> str:
        """Returns the name that torch shows."""
        return "local"

    @property
    def use_agent_store(self) -> bool:
        """Has the ranks meet in the store of the agent."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Returns the store; the only agent is number 0 of 1."""
        return RendezvousInfo(self._store, 0, 1, RendezvousStoreInfo(HERE, self._port))

    def is_closed(self) -> bool:
        """Says that ranks may be started again."""
        return False

    def set_closed(self) -> None:
        """Does nothing: there is nobody to tell."""

    def num_nodes_waiting(self) -> int:
        """Says that no other agent comes."""
        return 0

    def get_run_id(self) -> str:
        """Returns a name for this agent's life."""
        return self._run_id

    def shutdown(self) -> bool:
        """Leaves the store to the end of the process."""
        return True
