"""The network: token encoder, context encoders, biLM, mixes and the softmax."""
