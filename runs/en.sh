#!/usr/bin/env bash
# The bundled English model, a Transformer, from raw text: runs/en.sh CORPORA OUTPUT
#
# CORPORA is a folder with enwiki-*.txt.xz, simplewiki-*, books-*, europarl-* and frus-*: raw text, one paragraph per
# line, a blank line between documents. OUTPUT gets text/ (the last file of each kind, cut into what is trained on and what
# is held out), text/clean/ (the text to train on, by clean.py), run/ (legs 1 and 2, one training run by en.toml), leg3/
# (a second run that starts from its weights, by en-leg3.toml), en/ (the model as it is shipped), eval.txt, positions.tsv
# and positions.png. A run that was killed resumes from its last checkpoint when the same command is given again. To
# train on several machines, one after the other, see "In legs" in docs/training.md.
#
# The held-out text of the bundled model was of enwiki-b-2 and books-2 alone, the last files at that time.
#
# Variables of this script:
#
#   DEVICE              cpu, cuda, cuda:1 ...  [a GPU if there is one]
#   MINUTES, or STEPS   how long each run takes, by the clock or in updates  [as the .toml files say]
#   PYTHON              a Python that has elmokit  [that of .venv here, or python3]
#   ELMO_TRAIN_OPTIONS  more options of elmo train for run/, as "--preset tiny --steps 20"  [none]
#   ELMO_LEG_OPTIONS    more options of elmo train for leg3/, as "--steps 20"  [none]
set -euo pipefail
# shellcheck source=runs/reproduce.sh
source "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh"
CLEAN=latin LOWER=10 STATE=zero reproduce en enwiki simplewiki books europarl frus -- "$@"
