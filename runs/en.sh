#!/usr/bin/env bash
# The bundled English model, a Transformer, from raw text: runs/en.sh CORPORA OUTPUT
#
# CORPORA is a folder with enwiki-*.txt.xz, simplewiki-*, books-*, europarl-* and frus-*: raw text, one paragraph per
# line, a blank line between documents. OUTPUT gets text/ (the last file of each kind, cut into what is trained on and what
# is held out), text/clean/ (the text to train on, by clean.py), run/ (the training run), en/ (the model as it is
# shipped), eval.txt, positions.tsv and positions.png. A run that was killed resumes from its last checkpoint when the
# same command is given again. To train on several machines, one after the other, see "In legs" in docs/training.md.
#
# The bundled model had a third leg after this run, from its float16 weights:
#
#   elmo train OUTPUT/text/clean/*.txt --init OUTPUT/en --output OUTPUT/leg3 --segment english --split line \
#     --batch-tokens 131072 --grow 1 --tokens 1.1e9 --learning-rate 0.0015 --warmup 0.02 --mask 0.2,0.15 \
#     --causal 0.125,0.125 --dropout 0
#
# Its held-out text was of enwiki-b-2 and books-2 alone, the last files at that time.
#
# Variables of this script:
#
#   DEVICE              cpu, cuda, cuda:1 ...  [a GPU if there is one]
#   MINUTES, or STEPS   how long to train, by the clock or in updates  [as en.toml says]
#   PYTHON              a Python that has elmokit  [that of .venv here, or python3]
#   ELMO_TRAIN_OPTIONS  more options of elmo train, as "--preset tiny --steps 20"  [none]
set -euo pipefail
# shellcheck source=runs/reproduce.sh
source "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh"
CLEAN=latin LOWER=10 STATE=zero reproduce en enwiki simplewiki books europarl frus -- "$@"
