#!/usr/bin/env bash
# clang-tidy over the .cpp files that differ from the main branch's last landing (or all, with --all).
# usage: scripts/tidy.sh BUILD_DIR… [--all]     a file is read as the first of these builds that has it compiles it
# shellcheck source=scripts/console.sh
source "$(dirname "$0")/console.sh"
cd "$repo_dir"
builds=() all=false
for argument in "$@"; do
  case $argument in
    --all) all=true ;;
    -*) fail "usage: scripts/tidy.sh BUILD_DIR… [--all]" ;;
    *) builds+=("$argument") ;;
  esac
done
[ ${#builds[@]} -gt 0 ] || fail "usage: scripts/tidy.sh BUILD_DIR… [--all]"

if $all; then
  mapfile -t files < <(git ls-files -- '*.cpp')
else
  base=${LLM_DIST_TIDY_BASE:-$(git rev-parse -q --verify HEAD~10 || true)}
  if [ -z "$base" ]; then
    if [ "$(git rev-parse --is-shallow-repository)" = true ]; then
      echo "   nothing read: a shallow clone does not show what differs (git fetch --deepen 10)"
      exit 0
    fi
    base=$(git rev-list --max-parents=0 HEAD | tail -n 1)
  fi
  # What changed last comes first, for where not all are read.
  changed=$({ git diff --name-only HEAD -- '*.cpp'; git log --format= --name-only "$base..HEAD" -- '*.cpp'; } | awk '!seen[$0]++')
  mapfile -t files < <(grep -xFf <(git diff --name-only --diff-filter=d "$base" -- '*.cpp') <<<"$changed")
fi
# A file that no build has (CUDA's and NCCL's where their headers are missing) cannot be read: name it.
declare -A build_of=()
for build in "${builds[@]}"; do
  [ -e "$build/compile_commands.json" ] || fail "$build is not configured: compile_commands.json is missing"
  mapfile -t compiled < <(grep -oP '"file": "\K[^"]+' "$build/compile_commands.json" | xargs realpath --relative-to=.)
  for file in "${compiled[@]}"; do build_of[$file]=${build_of[$file]:-$build}; done
done
readable=() unreadable=()
for file in "${files[@]}"; do
  if [ -n "${build_of[$file]:-}" ]; then readable+=("$file"); else unreadable+=("$file"); fi
done
[ ${#unreadable[@]} -eq 0 ] || echo "   not built here, so not read: ${unreadable[*]}"
files=("${readable[@]}")
# A Beast translation unit takes half a minute; half a dozen files a commit is the usual case.
limit=${LLM_DIST_TIDY_LIMIT:-25}
if [ ${#files[@]} -gt "$limit" ]; then
  echo "   ${#files[@]} files differ; reading the $limit that changed last (LLM_DIST_TIDY_LIMIT)"
  files=("${files[@]:0:$limit}")
fi
[ ${#files[@]} -gt 0 ] || { echo "   no file differs"; exit 0; }
for file in "${files[@]}"; do printf '%s\n' "${build_of[$file]}" "$file"; done |
  xargs -r -P "$(nproc)" -n 2 clang-tidy-19 --quiet --extra-arg=-Wno-unknown-warning-option --warnings-as-errors='*' -p 2>/dev/null
