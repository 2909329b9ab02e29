"""The call signatures of older ELMo systems, computed by elmokit's network."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from elmokit.errors import ElmoError

_ALLENNLP = {
    "allennlp.commands.elmo": ("ElmoEmbedder", "DEFAULT_OPTIONS_FILE", "DEFAULT_WEIGHT_FILE", "DEFAULT_BATCH_SIZE"),
    "allennlp.common.checks": ("ConfigurationError",),
    "allennlp.data.token_indexers.elmo_indexer": ("ELMoCharacterMapper",),
    "allennlp.modules": ("Elmo", "ScalarMix"),
    "allennlp.modules.elmo": ("Elmo", "batch_to_ids", "_ElmoBiLm", "_ElmoCharacterEncoder"),
    "allennlp.modules.scalar_mix": ("ScalarMix",),
    "allennlp.modules.token_embedders.elmo_token_embedder": ("ElmoTokenEmbedder",),
    "allennlp.modules.token_embedders": ("ElmoTokenEmbedder",),
    "allennlp.nn.util": ("add_sentence_boundary_token_ids", "remove_sentence_boundaries"),
}
"""The modules of AllenNLP and the names in them that `elmokit.compat.allennlp` also has."""


def install_allennlp() -> None:
    """Make imports of AllenNLP's ELMo in this process give elmokit's classes; the rest of AllenNLP does not exist.

    This is for code that cannot be changed, such as `flair.embeddings.ELMoEmbeddings`. It is refused if AllenNLP itself
    is installed.
    """
    present = sys.modules.get("allennlp")
    if present is not None and present.__doc__ == install_allennlp.__doc__:
        return
    if present is not None or find_spec("allennlp") is not None:
        raise ElmoError("install_allennlp is for environments without allennlp, and this one has it: uninstall it")
    from elmokit.compat import allennlp

    for path, names in _ALLENNLP.items():
        parts = path.split(".")
        for length in range(1, len(parts) + 1):
            _module(".".join(parts[:length]))
        for name in names:
            setattr(sys.modules[path], name, getattr(allennlp, name))


def _module(name: str) -> None:
    """Create an empty package of this name, and set it as an attribute of its parent package."""
    if name in sys.modules:
        return
    module = ModuleType(name, install_allennlp.__doc__)
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
