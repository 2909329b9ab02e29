#!/usr/bin/env bash
# The bundled classic English biLM from raw text: runs/en-lstm.sh CORPORA OUTPUT
#
# CORPORA is a folder with enwiki-*.txt.xz and books-*.txt.xz: raw text, one paragraph per line, a blank line between
# documents. OUTPUT gets text/ (the last file of each kind, cut into what is trained on and what is held out), run/ (the
# training run), en-lstm/ (the model; in the package its matrices are int8), eval.txt, positions.tsv and positions.png. A
# run that was killed resumes from its last checkpoint when the same command is given again. Variables:
#
#   DEVICE              cpu, cuda, cuda:1 ...  [a GPU if there is one]
#   MINUTES, or STEPS   how long to train, by the clock or in updates  [as en-lstm.toml says]
#   PYTHON              a Python that has elmokit  [that of .venv here, or python3]
#   ELMO_TRAIN_OPTIONS  more options of elmo train, as "--preset tiny --steps 20"  [none]
set -euo pipefail
# shellcheck source=runs/reproduce.sh
source "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh"
reproduce en-lstm enwiki books -- "$@"
