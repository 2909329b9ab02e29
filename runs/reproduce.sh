# shellcheck shell=bash
# What en.sh, en-lstm.sh and zh.sh share: from raw corpora to the shipped form of a model, and its figures. Sourced, not
# called.

refuse() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  exit 2
}

# reproduce NAME KIND... -- ARGUMENT...: train by NAME.toml on the files KIND-*.txt.xz of the folder that was given.
reproduce() {
  local name=$1 kinds=() usage
  shift
  while [[ $1 != -- ]]; do
    kinds+=("$1")
    shift
  done
  shift
  usage="usage: ${0##*/} CORPORA OUTPUT (a folder with ${kinds[*]/%/-*.txt.xz}, and the folder to write)"
  if [[ $# -eq 1 && ($1 == -h || $1 == --help) ]]; then
    echo "$usage"
    exit 0
  fi
  [[ $# -eq 2 && -n $1 && -n $2 ]] || refuse "$usage"
  local corpora=${1%/} output=${2%/} here python
  [[ -d $corpora ]] || refuse "CORPORA must be a folder that exists, got $corpora"
  [[ -z ${MINUTES:-} || -z ${STEPS:-} ]] || refuse "set MINUTES or STEPS, not both: got $MINUTES and $STEPS"
  here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  python=$here/../.venv/bin/python
  [[ -x $python ]] || python=python3
  python=${PYTHON:-$python}
  "$python" -c 'import elmokit' 2>/dev/null || refuse "PYTHON must have elmokit installed, got $python: pip install it"

  # The last file of each kind, in the order of the alphabet, gives the held-out text.
  local kind train=() heldout=() files last part
  for kind in "${kinds[@]}"; do
    files=("$corpora/$kind"-*.txt.xz)
    last=${files[${#files[@]} - 1]}
    [[ -f $last ]] || refuse "CORPORA must contain $kind-*.txt.xz, got $corpora"
    part=$output/text/$(basename "$last" .txt.xz)
    [[ -f $part.train.txt ]] || "$python" "$here/heldout.py" "$last" "$output/text"
    unset "files[${#files[@]}-1]"
    train+=(${files[@]+"${files[@]}"} "$part.train.txt")
    heldout+=("$part.heldout.txt")
  done
  if [[ -n ${CLEAN:-} ]]; then # the script of the language: latin or chinese
    local clean=$output/text/clean
    if [[ ! -f $clean/finished ]]; then
      "$python" "$here/clean.py" "$clean" "${train[@]}" --script "$CLEAN" --lower "${LOWER:-0}" ${SIMPLIFY:+--simplify} --against "${heldout[@]}"
      touch "$clean/finished"
    fi
    train=("$clean"/*.txt)
  fi

  local device=() more=() file options=()
  [[ -z ${DEVICE:-} ]] || device=(--device "$DEVICE")
  for file in "${heldout[@]}"; do
    options+=(--heldout "$file")
  done
  [[ -z ${MINUTES:-} ]] || options+=(--minutes "$MINUTES" --steps 0 --epochs 0 --tokens 0)
  [[ -z ${STEPS:-} ]] || options+=(--steps "$STEPS" --minutes 0 --epochs 0 --tokens 0)
  options+=(${device[@]+"${device[@]}"} --resume)
  read -r -a more <<<"${ELMO_TRAIN_OPTIONS:-}"
  local run=$output/run leg
  "$python" -m elmokit train "${train[@]}" --config "$here/$name.toml" --output "$run" "${options[@]}" ${more[@]+"${more[@]}"}

  # Each further leg starts from the weights of the one before it.
  read -r -a more <<<"${ELMO_LEG_OPTIONS:-}"
  for file in "$here/$name"-leg*.toml; do
    [[ -f $file ]] || continue
    leg=$output/$(basename "${file#"$here/$name-"}" .toml)
    "$python" -m elmokit train "${train[@]}" --config "$file" --init "$run" --output "$leg" "${options[@]}" ${more[@]+"${more[@]}"}
    run=$leg
  done

  "$python" -m elmokit convert "$run" "$output/$name" --to elmokit --dtype "${DTYPE:-float16}" --softmax int8 --overwrite

  local positions=(--by-position "$output/positions.tsv")
  if "$python" -c 'import matplotlib' 2>/dev/null; then
    positions+=(--by-position "$output/positions.png")
  fi
  "$python" -m elmokit eval "$output/$name" "${heldout[@]}" --state "${STATE:-both}" "${positions[@]}" ${device[@]+"${device[@]}"} |
    tee "$output/eval.txt"
  echo "the model is $output/$name: Elmo.load(\"$output/$name\") opens it"
}
