"""The scheduler: decides which sequences run in the next step of one group, and keeps everything that takes.

service -> admission -> schedule -> (blocks, fairness) -> batch -> group -> worker
loop: receive, schedule, step, process; drafts come from drafts, news go out through events
"""
