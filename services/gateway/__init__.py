"""The gateway: text and messages in, text, reasoning and tool calls out; holds no model.

config.py       its settings
auth.py         keys and tenants
messages.py     the messages of gateway.proto as dataclasses
text_model.py   what the model's directory says about text: tokenizer/, template.py, defaults
requests.py     from what a client asks to what a scheduler is told: bounds.py, params.py, grammar.py
output/         from output tokens to text, reasoning and tool calls
schedulers.py   the schedulers behind it: each one stream (scheduler_client.py) of sequences (sequence.py)
answer.py       one request from its submission to its last delta
service.py      gRPC
"""
