"""What the agent changes of torch's own."""

from torch.distributed.elastic.rendezvous import dynamic_rendezvous

from services.worker.group.agent import name_events_cheaply


def record() -> str:
    return dynamic_rendezvous.get_method_name()


def test_events_of_the_rendezvous_have_the_names_that_torch_gives_them(monkeypatch) -> None:
    monkeypatch.setattr(dynamic_rendezvous, "get_method_name", torchs := dynamic_rendezvous.get_method_name)
    named_by_torch = record()
    name_events_cheaply()
    assert dynamic_rendezvous.get_method_name is not torchs
    assert record() == named_by_torch == "test_events_of_the_rendezvous_have_the_names_that_torch_gives_them"
