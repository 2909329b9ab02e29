#!/usr/bin/env bash
# The bundled English model, a Transformer, from raw text: runs/en.sh CORPORA OUTPUT
#
# CORPORA is a folder with enwiki-*.txt.xz, simplewiki-*, books-*, europarl-* and frus-*: raw text, one paragraph per
# line, a blank line between documents. OUTPUT gets text/ (the last file of each kind, cut into what is trained on and what
# is held out), text/clean/ (the text to train on, by clean.py), run/ (the training run), en/ (the model as it is
# shipped), eval.txt, positions.tsv and positions.png. A run that was killed resumes from its last checkpoint when the same command is given again. On several machines, one after
# the other, it is trained in legs: docs/training.md. Variables:
#
#   DEVICE              cpu, cuda, cuda:1 ...  [a GPU if there is one]
#   MINUTES, or STEPS   how long to train, by the clock or in updates  [as en.toml says]
#   PYTHON              a Python that has elmokit  [that of .venv here, or python3]
#   ELMO_TRAIN_OPTIONS  more options of elmo train, as "--preset tiny --steps 20"  [none]
set -euo pipefail
# shellcheck source=runs/reproduce.sh
source "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh"
CLEAN=latin STATE=zero reproduce en enwiki simplewiki books europarl frus -- "$@"
