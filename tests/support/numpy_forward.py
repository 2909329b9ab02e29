"""What a model's vectors must be: the forward pass in plain numpy float64, one sentence and one number at a time.

It reads the arrays as they are in the files and shares no code with the package.
"""

import numpy as np

from support.model_files import Bilm, ManyLangs

ACTIVATIONS = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}
Cell = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def bounded(x: np.ndarray, bound: float | None) -> np.ndarray:
    return np.clip(x, -bound, bound) if bound else x


def bilm_layers(model: Bilm, tokens: list[str], *, boundaries: bool = False) -> np.ndarray:
    """[L+1, T, D] of one sentence; with the sentence's two boundaries in on request."""
    return _layers(
        np.stack([bilm_token(model, token) for token in ("<S>", *tokens, "</S>")]),
        [[model.cell(d, layer) for layer in range(model.n_layers)] for d in range(model.n_directions)],
        _bilm_cell,
        model.options["lstm"],
        skip=model.options["lstm"]["use_skip_connections"],
    )[:, slice(None) if boundaries else slice(1, -1)]


def bilm_token(model: Bilm, token: str) -> np.ndarray:
    """[P]: a token before any context."""
    weights = {name: value.astype(np.float64) for name, value in model.weights.items()}
    if "embedding" in weights:
        return weights["embedding"][word_index(model.vocab, token)]
    options = model.options["char_cnn"]
    embedding = weights["char_embed"][-261:]  # some dumps have a row for the padded token before them
    rows = embedding[character_ids(token, options["max_characters_per_token"])]
    parts = []
    for number, (width, _) in enumerate(options["filters"]):
        kernel = weights[f"CNN/W_cnn_{number}"][0]  # width, c, count
        windows = [np.einsum("wc,wcn->n", rows[at : at + width], kernel) for at in range(len(rows) - width + 1)]
        parts.append(np.max(windows, axis=0) + weights[f"CNN/b_cnn_{number}"])
    x = ACTIVATIONS[options["activation"]](np.concatenate(parts))
    for number in range(options.get("n_highway", 0)):
        high = f"CNN_high_{number}/"
        gate = sigmoid(x @ weights[high + "W_carry"] + weights[high + "b_carry"])
        new = np.maximum(x @ weights[high + "W_transform"] + weights[high + "b_transform"], 0)
        x = gate * new + (1 - gate) * x
    if "CNN_proj/W_proj" in weights:
        x = x @ weights["CNN_proj/W_proj"] + weights["CNN_proj/b_proj"]
    return x


def character_ids(token: str, longest: int) -> list[int]:
    """Rows of char_embed: bytes, 256 and 257 for the sentence's ends, 258 and 259 for the word's, 260 to fill up."""
    inner = {"<S>": [256], "</S>": [257]}.get(token) or list(token.encode())[: longest - 2]
    ids = [258, *inner, 259]
    return ids + [260] * (longest - len(ids))


def word_index(vocab: list[str], token: str) -> int:
    return vocab.index(token if token in vocab else "<UNK>")


def bilm_log_probs(model: Bilm, tokens: list[str]) -> list[np.ndarray]:
    """Per direction [T + 1]: the next word (or the one before) at each place, by the full softmax."""
    top = bilm_layers(model, tokens, boundaries=True)[-1]
    words = [word_index(model.vocab, token) for token in ("<S>", *tokens, "</S>")]
    table = model.weights.get("softmax/W", model.weights.get("embedding")).astype(np.float64)
    result = []
    for direction, part in enumerate(np.split(top, model.n_directions, axis=1)):
        scores = part @ table.T + model.weights["softmax/b"]
        scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        places = range(len(words) - 1) if direction == 0 else range(1, len(words))
        step = 1 if direction == 0 else -1
        result.append(np.array([scores[place, words[place + step]] for place in places]))
    return result


def manylangs_layers(model: ManyLangs, tokens: list[str]) -> np.ndarray:
    """[L+1, T, D] of one sentence."""
    encoder = {name: value.astype(np.float64) for name, value in model.encoder.items()}
    names = ("input_linearity.weight", "state_linearity.weight", "state_linearity.bias", "state_projection.weight")
    options = model.structure["encoder"]
    cells = [
        [[encoder[f"{direction}_layer_{layer}.{name}"] for name in names] for layer in range(options["n_layers"])]
        for direction in ("forward", "backward")
    ]
    tokens = ["<bos>", *tokens, "<eos>"]
    x = np.stack([manylangs_token(model, token) for token in tokens])
    return _layers(x, cells, _manylangs_cell, options, skip=True)[:, 1:-1]


def manylangs_token(model: ManyLangs, token: str) -> np.ndarray:
    weights = {name: value.astype(np.float64) for name, value in model.embedder.items()}
    options = model.structure["token_embedder"]
    longest = options["max_characters_per_token"]
    boundary = token in ("<bos>", "<eos>")
    token = token if boundary else token[: longest - 2]
    parts = []
    if model.words is not None:
        parts.append(weights["word_emb_layer.embedding.weight"][model.words.get(token, model.words["<oov>"])])
    if model.characters is not None:
        ids = model.characters
        inner = [ids[token]] if boundary else [ids.get(symbol, ids["<oov>"]) for symbol in token]
        row = [ids["<eow>"], *inner, ids["<bow>"]]
        rows = weights["char_emb_layer.embedding.weight"][row + [ids["<pad>"]] * (longest - len(row))]
        found = []
        for number, (width, _) in enumerate(options["filters"]):
            kernel = weights[f"convolutions.{number}.weight"]  # count, c, width
            windows = [np.einsum("wc,ncw->n", rows[at : at + width], kernel) for at in range(longest - width + 1)]
            found.append(np.max(windows, axis=0) + weights[f"convolutions.{number}.bias"])
        x = ACTIVATIONS[options["activation"]](np.concatenate(found))
        for number in range(options["n_highway"]):
            both = weights[f"highways._layers.{number}.weight"] @ x + weights[f"highways._layers.{number}.bias"]
            new, gate = np.maximum(both[: len(x)], 0), sigmoid(both[len(x) :])
            x = gate * x + (1 - gate) * new
        parts.append(x)
    return weights["projection.weight"] @ np.concatenate(parts) + weights["projection.bias"]


def _layers(x: np.ndarray, directions: list, cell, options: dict, *, skip: bool) -> np.ndarray:
    """x [T, P] and the cells of each direction → [L+1, T, D]."""
    columns = []
    for number, cells in enumerate(directions):
        inputs = x[::-1] if number else x
        outputs = [inputs]
        for layer, weights in enumerate(cells):
            out = _run(inputs, cell, weights, options)
            inputs = out + inputs if layer and skip else out
            outputs.append(inputs)
        stacked = np.stack(outputs)
        columns.append(stacked[:, ::-1] if number else stacked)
    return np.concatenate(columns, axis=-1)


def _run(x: np.ndarray, cell, weights: Cell, options: dict) -> np.ndarray:
    h = c = 0.0
    outputs = []
    for row in x:
        i, f, g, o, project = cell(row, h, weights)
        c = bounded(sigmoid(f) * c + sigmoid(i) * np.tanh(g), options.get("cell_clip"))
        h = sigmoid(o) * np.tanh(c)
        if project is not None:
            h = bounded(project @ h, options.get("proj_clip"))
        outputs.append(h)
    return np.stack(outputs)


def _bilm_cell(x: np.ndarray, h: np.ndarray | float, weights: Cell) -> tuple:
    """Gates i, j, f, o in one kernel of [x; h]; the forget gate's bias of 1 is not in the file."""
    kernel, bias, projection = weights
    size = len(x)
    h = np.zeros(size) if isinstance(h, float) else h
    i, j, f, o = np.split(np.concatenate([x, h]) @ kernel.astype(np.float64) + bias, 4)
    return i, f + 1, j, o, None if projection is None else projection.astype(np.float64).T


def _manylangs_cell(x: np.ndarray, h: np.ndarray | float, weights: list[np.ndarray]) -> tuple:
    """Gates i, f, g, o; the forget gate's bias is in the file."""
    of_input, of_state, bias, projection = weights
    z = of_input @ x + bias
    if not isinstance(h, float):
        z = z + of_state @ h
    return *np.split(z, 4), projection
