"""The four processes that serve a model.

    client -- text --> gateway -- token ids --> scheduler -- steps --> worker group
                                                scheduler -- committed tokens, drafts --> drafter

A service imports `outrider` and itself, never another service. `python -m services` runs all four here.
"""
