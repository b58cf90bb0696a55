"""The local stack: the four services as supervised processes of one machine."""
