"""The scheduler: decides which sequences run in the next step of one group, and keeps everything that takes.

service -> admission -> schedule -> (places, rows, fairness, allocation) -> batch -> group -> worker
loop: receive, schedule, step, process; news go out through events
drafting -> (drafter, news, kept, ahead): asks for drafts before a step and, while the group computes, ahead
controller: what drafts cost and what they are worth; learnt keeps it over restarts
"""
