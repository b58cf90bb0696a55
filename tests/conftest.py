"""Settings every test shares."""

from hypothesis import settings

# A property holds or it does not; how long an example takes on a busy machine is no part of it.
settings.register_profile("outrider", deadline=None)
settings.load_profile("outrider")
