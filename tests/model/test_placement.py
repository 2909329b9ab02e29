import subprocess
import sys

import torch

from elmokit import BiLM
from elmokit.config import LstmConfig
from support.tiny_models import tiny_config


def test_a_shell_has_the_names_and_shapes_of_a_network():
    config = tiny_config()
    shell, whole = BiLM.shell(config).state_dict(), BiLM(config).state_dict()
    assert {name: value.shape for name, value in shell.items()} == {name: value.shape for name, value in whole.items()}
    assert torch.randn(3).device.type == "cpu"


def test_a_shell_takes_no_memory():
    config = tiny_config(context=LstmConfig(2**20, 2**20))  # 16 TB
    assert len(BiLM.shell(config, int8=True).state_dict()) == len(BiLM.shell(tiny_config(), int8=True).state_dict())


def test_loading_does_not_import_torchs_compiler(model_folder):
    program = f"import sys, elmokit; elmokit.Elmo.load({str(model_folder)!r}); print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
