"""The speculation controller: what drafts cost, what they are worth, whom to ask, how long to wait."""

from outrider_native.controller import Record

from services.scheduler.controller.controller import Controller
from services.scheduler.controller.facts import ModelFacts, Offer, Settings, StepShape
from services.scheduler.controller.state import load, save, state_path

__all__ = [
    "Controller",
    "ModelFacts",
    "Offer",
    "Record",
    "Settings",
    "StepShape",
    "load",
    "save",
    "state_path",
]
