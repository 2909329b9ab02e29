"""The network: token encoder, LSTM stacks, biLM, mixes and the softmax."""
