#!/usr/bin/env bash
# The bundled Chinese model, a Transformer, from raw text: runs/zh.sh CORPORA OUTPUT
#
# CORPORA is a folder with zhwiki-*.txt.xz: raw text, one paragraph per line, a blank line between documents. Traditional
# text is also trained on in simplified characters: pip install opencc-python-reimplemented. OUTPUT gets run/ (the first
# leg, by zh.toml), leg2/ (a second run that starts from its weights, by zh-leg2.toml) and the rest as in en.sh, which
# also says how a killed run resumes and which variables there are.
set -euo pipefail
# shellcheck source=runs/reproduce.sh
source "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh"
CLEAN=chinese SIMPLIFY=1 DTYPE=int8 STATE=zero reproduce zh zhwiki -- "$@"
