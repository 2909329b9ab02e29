"""Write the files of all-MiniLM-L6-v2 for its systems; runs in the environment of that peer.

    python -m peers.minilm_files FOLDER [SOURCE]

SOURCE is a folder with the files of sentence-transformers/all-MiniLM-L6-v2; by default they come from the Hugging Face
Hub. The model's own onnx/model.onnx is used if it exists, otherwise the graph is exported from the weights.
onnxruntime's tools then fuse the graph and quantise it, which makes it as fast as possible in onnxruntime:
    FOLDER/config.json, tokenizer.json, … model.safetensors   for transformers
    FOLDER/float32.onnx, int8.onnx                            for onnxruntime
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

HUB_ID = "sentence-transformers/all-MiniLM-L6-v2"
NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
GRAPH = "onnx/model.onnx"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def download() -> Path:
    """The folder of the files from the Hub, downloaded once."""
    from huggingface_hub import snapshot_download  # type: ignore[import-not-found,unused-ignore]

    return Path(snapshot_download(HUB_ID, allow_patterns=[*NEEDED, GRAPH]))


def export(source: Path, target: Path) -> None:
    """Write the network up to its last layer as an ONNX graph of any batch and any length."""
    import torch
    from transformers import AutoModel  # type: ignore[import-not-found,unused-ignore]

    class LastLayer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # With plain attention the graph has the pattern that onnxruntime can fuse.
            self.bert = AutoModel.from_pretrained(source, attn_implementation="eager", dtype=torch.float32)

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.bert(**dict(zip(INPUTS, given, strict=True))).last_hidden_state
            return found

    ids = torch.ones(2, 9, dtype=torch.int64)
    mask = ids.clone()
    mask[1, 6:] = 0
    torch.onnx.export(
        LastLayer().eval(),
        (ids, mask, torch.zeros_like(ids)),
        str(target),
        input_names=list(INPUTS),
        output_names=["last_hidden_state"],
        dynamic_axes={name: {0: "batch", 1: "time"} for name in (*INPUTS, "last_hidden_state")},
        opset_version=17,
        dynamo=False,
    )


def write(folder: Path, source: Path) -> None:
    """Write all files from the files of the Hub."""
    from onnx import TensorProto  # type: ignore[import-not-found,unused-ignore]
    from onnxruntime.quantization import QuantType, quantize_dynamic  # type: ignore[import-not-found,unused-ignore]
    from onnxruntime.transformers.optimizer import optimize_model  # type: ignore[import-not-found,unused-ignore]

    if missing := [name for name in NEEDED if not (source / name).is_file()]:
        sys.exit(f"{source} must have the files of {HUB_ID}, but {missing[0]} is missing")
    for name in NEEDED:
        shutil.copy(source / name, folder / name)
    plain = source / GRAPH
    if not plain.is_file():
        plain = folder / "exported.onnx"
        export(source, plain)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    heads, size = config["num_attention_heads"], config["hidden_size"]
    fused = optimize_model(str(plain), model_type="bert", num_heads=heads, hidden_size=size, opt_level=0)
    fused.save_model_to_file(str(folder / "float32.onnx"))
    quantize_dynamic(
        folder / "float32.onnx",
        folder / "int8.onnx",
        per_channel=True,
        weight_type=QuantType.QInt8,
        extra_options={"DefaultTensorType": TensorProto.FLOAT},  # for the results of fused operations
    )


def main() -> None:
    folder, *source = map(Path, sys.argv[1:])
    write(folder, source[0] if source else download())


if __name__ == "__main__":
    main()
