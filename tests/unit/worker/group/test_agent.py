"""The agent of one machine is reached from there alone."""

import socket

import pytest
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from services.worker.group.rendezvous import LocalRendezvous


def test_the_store_of_one_machine_listens_on_the_loopback_address_alone():
    meeting = LocalRendezvous().next_rendezvous()
    found = meeting.bootstrap_store_info
    assert found is not None
    TCPStore(found.master_addr, found.master_port, is_master=False).set("a", "b")
    assert meeting.store.get("a") == b"b"
    # Any interface has this address too.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", found.master_port))
