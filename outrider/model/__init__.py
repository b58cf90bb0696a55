"""The DeepSeek-V3 / Kimi-K2 network and dense Llama, written once over a small set of kernels.

Dimension key, used in shape comments throughout:

    T  tokens of a step, all sequences one after another
    B  sequences
    R  rows of logits that are wanted
    Q  rows of hidden vectors that are wanted
    D  model (hidden size)
    F  feed-forward hidden size
    H  query heads
    G  key and value heads
    C  width of the compressed key-value latent
    P  width of the rotary part of a head
    E  routed experts
    A  experts per token
    S  tokens of an attention split
    V  vocabulary
    K, N  inputs and outputs of a product
"""
