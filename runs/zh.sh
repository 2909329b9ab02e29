#!/usr/bin/env bash
# The bundled Chinese model, a Transformer, from raw text: runs/zh.sh CORPORA OUTPUT
#
# CORPORA is a folder with zhwiki-*.txt.xz: raw text, one paragraph per line, a blank line between documents. Traditional
# text is also trained on in simplified characters: pip install opencc-python-reimplemented. What OUTPUT gets, how a
# killed run resumes, and the variables DEVICE, MINUTES or STEPS, PYTHON and ELMO_TRAIN_OPTIONS are as in en.sh; the
# recipe is in zh.toml.
set -euo pipefail
# shellcheck source=runs/reproduce.sh
source "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh"
CLEAN=chinese SIMPLIFY=1 DTYPE=int8 STATE=zero reproduce zh zhwiki -- "$@"
