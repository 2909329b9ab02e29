"""The weights of a new network before its first update: the distributions that bilm-tf draws from."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from elmokit.corpus.prepared import PreparedCorpus
from elmokit.model.bilm import BiLM
from elmokit.model.language_model import LmHead
from elmokit.model.token_encoder import CharCnn, Highway
from elmokit.text.vocab import Vocabulary

_CARRY_BIAS = -2.0
"""A highway begins by passing most of its input on."""


@torch.no_grad()
def initialise(bilm: BiLM) -> None:
    """Draw all weights; the words of a table are as large as the outputs of the layers above it."""
    encoder = bilm.token_encoder
    if encoder.words is not None:
        nn.init.normal_(encoder.words.weight, std=bilm.config.token_size**-0.5)
        encoder.words.weight[0] = 0
    if encoder.char_cnn is not None:
        _initialise_characters(encoder.char_cnn)
    if encoder.projection is not None:
        assert isinstance(encoder.projection, nn.Linear)
        nn.init.normal_(encoder.projection.weight, std=encoder.projection.in_features**-0.5)
        nn.init.zeros_(encoder.projection.bias)
    bilm.context.reset_parameters()


def _initialise_characters(char_cnn: CharCnn) -> None:
    nn.init.uniform_(char_cnn.embedding.weight, -1, 1)
    char_cnn.embedding.weight[0] = 0
    for convolution in char_cnn.convolutions:
        assert isinstance(convolution, nn.Conv1d)
        assert convolution.bias is not None
        if char_cnn.config.activation == "relu":
            nn.init.uniform_(convolution.weight, -0.05, 0.05)
        else:
            nn.init.normal_(convolution.weight, std=(convolution.in_channels * convolution.kernel_size[0]) ** -0.5)
        nn.init.zeros_(convolution.bias)
    for highway in char_cnn.highways:
        assert isinstance(highway, Highway)
        for part, bias in ((highway.transform, 0.0), (highway.gate, _CARRY_BIAS)):
            assert isinstance(part, nn.Linear)
            nn.init.normal_(part.weight, std=part.in_features**-0.5)
            nn.init.constant_(part.bias, bias)


@torch.no_grad()
def start_from_frequencies(head: LmHead, vocab: Vocabulary, corpus: PreparedCorpus) -> None:
    """Let a new softmax begin by expecting each word as often as the corpus has it."""
    counts = np.ones(len(vocab))
    np.add.at(counts, np.fromiter(map(vocab.index, corpus.type_texts()), np.int64, corpus.n_types), corpus.counts)
    # Each boundary is expected by one direction alone.
    counts[[vocab.begin, vocab.end]] = corpus.n_sentences / 2
    head.bias.copy_(torch.from_numpy(np.log(counts / counts.sum() * len(vocab))))
