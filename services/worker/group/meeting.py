"""How ranks that torchrun has started find each other."""

import contextlib
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from services.worker.group.channel import Channel
from services.worker.group.exchange import Exchange
from services.worker.group.introductions import call_leader, receive_peers
from services.worker.group.lifeline import Lifeline, OnLost
from services.worker.group.messages import Kind, Message
from services.worker.lost import GroupLost
from services.worker.process import end_process

# A rank waits for the next step however long it takes. That another is gone, the lifeline says.
FOREVER = timedelta(days=365)
STORE_TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A rank as torchrun's agent names it, and the store of the agent by which it finds the others."""

    rank: int
    num_ranks: int
    local_rank: int
    is_on_one_machine: bool
    host: str
    store: Store

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> "Seat":
        """Reads what the agent sets. The store outlives the ranks: each start has keys of its own in it."""
        host = environ["MASTER_ADDR"]
        store = TCPStore(host, int(environ["MASTER_PORT"]), is_master=False, timeout=STORE_TIMEOUT)
        return cls(
            rank=int(environ["RANK"]),
            num_ranks=int(environ["WORLD_SIZE"]),
            local_rank=int(environ["LOCAL_RANK"]),
            is_on_one_machine=environ["GROUP_WORLD_SIZE"] == "1",
            host=host,
            store=PrefixStore(f"restart_{environ['TORCHELASTIC_RESTART_COUNT']}", store),
        )

    def is_first_to(self, what: str) -> bool:
        """Whether no rank of this start has done something yet."""
        return self.store.add(what, 1) == 1


@dataclass(frozen=True, kw_only=True)
class Group:
    """The ranks that have met."""

    exchange: Exchange
    channel: Channel
    lifeline: Lifeline
    store: Store

    @property
    def is_led_here(self) -> bool:
        """Whether this is rank 0."""
        return self.exchange.rank == 0

    def end(self) -> None:
        """Has the other ranks end; only for rank 0, after the last step."""
        self.lifeline.stop()
        # One that is gone need not be told.
        with contextlib.suppress(GroupLost):
            self.channel.send(Message(kind=Kind.END))


@dataclass(frozen=True, kw_only=True)
class Join:
    """How a rank is to join its group."""

    seat: Seat
    peer_seconds: float
    # Hears that the group is lost; the process is to end then.
    on_lost: OnLost
    has_met: threading.Event = field(default_factory=threading.Event)

    def __call__(self, device: torch.device) -> Group:
        """Waits for the other ranks. Raises what the network raises if one does not come."""
        seat = self.seat
        if seat.rank == 0:
            listen_on = seat.host if seat.is_on_one_machine else ""
            peers = receive_peers(seat.store, seat.num_ranks, seat.host, listen_on=listen_on)
        else:
            peers = [call_leader(seat.store, seat.rank)]
        lifeline = Lifeline(peers, limit_seconds=self.peer_seconds, on_lost=self.on_lost)
        lifeline.start()
        steps, layers = _process_groups(seat, device)
        self.has_met.set()
        return Group(exchange=Exchange(layers), channel=Channel(steps), lifeline=lifeline, store=seat.store)

    def stop(self) -> None:
        """Ends the process if it still waits for the others: nothing else gets a thread out of that."""
        if not self.has_met.is_set():
            end_process(1)


def _process_groups(seat: Seat, device: torch.device) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Returns one for the steps, by the processors, and one for the layers, by the devices."""
    if seat.is_on_one_machine:
        # Else Gloo looks for the address of the machine's name, which a container may not know.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", store=seat.store, rank=seat.rank, world_size=seat.num_ranks, timeout=FOREVER
    )
    steps = dist.group.WORLD
    layers = dist.new_group(backend="nccl" if device.type == "cuda" else "gloo", timeout=FOREVER)
    assert isinstance(steps, dist.ProcessGroup)
    assert isinstance(layers, dist.ProcessGroup)
    return steps, layers
