"""Trains `models/tiny` from scratch on problems that a program makes and checks.

tasks/         problems: a question, the steps that solve it, the answer
tokenizer.py   the vocabulary: bytes, the words of the templates, Kimi's special tokens
chat.py        the chat template, the one that is shipped with the model
documents.py   problems -> conversations -> token ids, of which the model's own part is learnt
batches.py     documents laid out in blocks of equal rows
network.py     the DeepSeek-V3 network in the form that trains fastest on a CPU
optimizer.py   Muon for matrices, AdamW for the rest
train.py       the run:    python -m training.train --out RUN
export.py      the model directory, bf16
generate.py    greedy generation for many prompts at once
evaluate.py    the marks:  python -m training.evaluate
llama.py       a small dense Llama network
draft_model.py the draft model's run:  python -m training.draft_model --out DIR
"""
