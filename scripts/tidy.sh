#!/usr/bin/env bash
# clang-tidy over the .cpp files that differ from the main branch's last landing (or all, with --all).
# usage: scripts/tidy.sh BUILD_DIR [--all]
# shellcheck source=scripts/console.sh
source "$(dirname "$0")/console.sh"
cd "$repo_dir"
build=${1:?usage: scripts/tidy.sh BUILD_DIR [--all]}

if [ "${2:-}" = --all ]; then
  mapfile -t files < <(git ls-files -- '*.cpp')
else
  base=${LLM_DIST_TIDY_BASE:-$(git rev-parse -q --verify HEAD~10 || git rev-list --max-parents=0 HEAD | tail -n 1)}
  mapfile -t files < <(git diff --name-only --diff-filter=d "$base" -- '*.cpp')
fi
# A file that this machine cannot compile (CUDA's and NCCL's where their headers are missing) is in no build: name it.
mapfile -t compiled < <(grep -oP '"file": "\K[^"]+' "$build/compile_commands.json")
declare -A in_build=()
for file in "${compiled[@]}"; do in_build[$(realpath --relative-to=. "$file")]=1; done
readable=() unreadable=()
for file in "${files[@]}"; do
  if [ -n "${in_build[$file]:-}" ]; then readable+=("$file"); else unreadable+=("$file"); fi
done
[ ${#unreadable[@]} -eq 0 ] || echo "   not built here, so not read: ${unreadable[*]}"
files=("${readable[@]}")
# A Beast translation unit takes half a minute; half a dozen files a commit is the usual case.
limit=${LLM_DIST_TIDY_LIMIT:-25}
if [ ${#files[@]} -gt "$limit" ]; then
  echo "   ${#files[@]} files differ; reading the first $limit (LLM_DIST_TIDY_LIMIT)"
  files=("${files[@]:0:$limit}")
fi
[ ${#files[@]} -gt 0 ] || { echo "   no file differs"; exit 0; }
printf '%s\n' "${files[@]}" | xargs -r -P "$(nproc)" -n 1 clang-tidy-19 -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option --warnings-as-errors='*' 2>/dev/null
