"""From a prepared corpus to a trained language model. The modules in the order of a run:

request.py, recipe.py    the files and options of a new or resumed run
setup.py                 the corpora, the vocabulary and the network before its first update
network.py               the network in training: initial weights, loss, softmax
sentences.py             the sentences in the order in which they are read, and the ids of their tokens
windows.py               rows of running text, for an LSTM
segments.py              segments of one or more sentences, for a Transformer
batches.py               batches prepared in advance by a thread or a process
objective.py             what an update reads and predicts, and the schedules of the run
updates.py, optimizer.py gradients, clipping and the changes of the weights
loop.py                  updates, held-out perplexities, checkpoints
evaluate.py              held-out perplexity: overall, by sentence and by position
distributed.py           several processes
checkpoints.py           the files of a run
metrics.py, curve.py     metrics.jsonl, TensorBoard and the picture of the run
"""
