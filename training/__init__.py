"""Trains `models/tiny`, the embedded reasoning model, from scratch on problems that a program makes and checks.

tasks/         problems: a question, the steps that solve it, the answer
tokenizer.py   the vocabulary: bytes, the words of the templates, Kimi's special tokens
chat.py        the chat template, the one that is shipped with the model
documents.py   problems -> conversations -> token ids with a loss mask -> packed rows
network.py     the DeepSeek-V3 network in the form that trains fastest on a CPU
optimizer.py   Muon for matrices, AdamW for the rest
train.py       the run:    python -m training.train
export.py      the model directory, bf16
evaluate.py    the marks:  python -m training.evaluate
"""
