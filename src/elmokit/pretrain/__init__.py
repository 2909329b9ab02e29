"""From a prepared corpus to a trained language model, in the order of a run:

request.py, recipe.py    what was asked for: files and options, new or resumed
setup.py                 the corpora, the vocabulary and the network before its first update
network.py               the network in training: weights, loss, softmax
sentences.py             sentences in the order of reading, and the ids of their tokens
windows.py               rows of running text, for an LSTM
segments.py              whole stretches of text, for a Transformer
batches.py               batches made ahead, by a thread or a process
objective.py             what an update reads and predicts, and the schedules of the run
updates.py, optimizer.py the gradients of some batches, and how weights follow them
loop.py                  updates, held-out perplexities, checkpoints
evaluate.py              held-out perplexity, in all, by sentence and by position
distributed.py           several processes
checkpoints.py           the files of a run
metrics.py               metrics.jsonl and TensorBoard; progress.py and curve.py show them
"""
