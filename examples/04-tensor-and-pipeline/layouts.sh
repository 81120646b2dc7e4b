#!/usr/bin/env bash
# The same question in several layouts; greedy answers are the same in all of them.
# usage: layouts.sh [TPxPP …]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
binary=${LLM_DIST:-$root/build/release/launch/llm-dist}
model=${MODEL:-$root/.models/SmolLM2-135M-Instruct.Q4_1.gguf}
layouts=("$@")
[ $# -gt 0 ] || layouts=(1x1 2x1 3x1 1x2 2x2)
mpi_flags=(--oversubscribe --bind-to none)
[ "$(id -u)" -ne 0 ] || mpi_flags+=(--allow-run-as-root)

ask() {
  local layout=$1
  shift
  local ranks=$((${layout%x*} * ${layout#*x}))
  mpirun -np "$ranks" "${mpi_flags[@]}" "$binary" generate "$model" --layout "$layout" "$@" --max-model-len 1024 \
    --chat --prompt 'What is the capital of France?' --log-level warning 2>/dev/null
}

for layout in "${layouts[@]}"; do
  printf '%-22s %s\n' "TPxPP $layout" "$(ask "$layout")"
  tp=${layout%x*}
  [ "$tp" -eq 1 ] || printf '%-22s %s\n' "TPxPP $layout, seq. par." "$(ask "$layout" --sequence-parallel on)"
done
