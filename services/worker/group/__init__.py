"""The processes that hold one copy of the model: rank 0 leads, the others follow it step by step.

agent (torchrun's, in the process that was started) -- forks --> rank 0, rank 1, ...

rank 0 --- one broadcast for each step ---> the others
ranks  <-- parts of layers, all-gathered --> ranks
rank 0 <-- lifeline: a connection with beats --> each other rank
"""
