#!/usr/bin/env bash
# The same question in several layouts; in f32, as on CPUs, greedy answers are the same in all of them.
# usage: layouts.sh [TPxPP …]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
binary=${LLM_DIST:-$root/build/release/launch/llm-dist}
model=${MODEL:-$root/.models/SmolLM2-135M-Instruct.Q4_1.gguf}
layouts=("$@")
[ $# -gt 0 ] || layouts=(1x1 2x1 3x1 1x2 2x2)
mpi_flags=(--oversubscribe --bind-to none)
[ "$(id -u)" -ne 0 ] || mpi_flags+=(--allow-run-as-root)
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

# ask LABEL LAYOUT FLAG…: one line of output; what went wrong, and the end, otherwise.
ask() {
  local label=$1 layout=$2 answer
  shift 2
  local ranks=$((${layout%x*} * ${layout#*x}))
  if ! answer=$(mpirun -np "$ranks" "${mpi_flags[@]}" "$binary" generate "$model" --layout "$layout" "$@" \
    --max-model-len 1024 --chat --prompt 'What is the capital of France?' 2>"$errors"); then
    cat "$errors" >&2
    exit 1
  fi
  printf '%-22s %s\n' "$label" "$answer"
}

for layout in "${layouts[@]}"; do
  ask "TPxPP $layout" "$layout"
  [ "${layout%x*}" -eq 1 ] || ask "TPxPP $layout, seq. par." "$layout" --sequence-parallel on
done
