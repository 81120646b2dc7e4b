#!/usr/bin/env bash
# Builds the fuzz targets of tests/fuzz with clang and libFuzzer and runs each from its kept corpus.
# usage: scripts/fuzz.sh [--seconds N] [--keep] [TARGET…]
#   --seconds N  how long each target runs (60)
#   --keep       put the inputs that reached something new into tests/fuzz/corpus, made as few as possible
#   TARGET       safetensors, gguf, http, …: the folders of tests/fuzz/corpus; by default all
# A finding ends it with a status of 1, the input's path and the command that runs it again.
# shellcheck source=scripts/console.sh
source "$(dirname "$0")/console.sh"

seconds=60 keep=false targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2:-} && shift ;;
    --keep) keep=true ;;
    -h | --help) sed -n '2,7s/^# \?//p' "$0" && exit 0 ;;
    -*) fail "unknown option $1 (see --help)" ;;
    *) targets+=("$1") ;;
  esac
  shift
done
[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "--seconds wants a number from 1 on, not '$seconds'"
cd "$repo_dir"
if [ ${#targets[@]} -eq 0 ]; then mapfile -t targets < <(ls tests/fuzz/corpus); fi
for target in "${targets[@]}"; do
  [ -d "tests/fuzz/corpus/$target" ] || fail "no target $target; there are: $(ls -m tests/fuzz/corpus)"
done

scripts/deps.sh --test --fuzz
add_rust_to_path
phase "Building (fuzz)"
run_logged build/log/configure-fuzz.log cmake --preset fuzz
run_logged build/log/build-fuzz.log cmake --build build/fuzz -j "$(jobs_that_fit)" --target "${targets[@]/%/_fuzz}"

status=0
for target in "${targets[@]}"; do
  phase "$target, $seconds s"
  program=build/fuzz/tests/fuzz/${target}_fuzz
  found=build/fuzz/found/$target/
  log=build/log/fuzz-$target.log
  mkdir -p "$found" build/fuzz/new/"$target"
  # A template may hold as much memory as a prompt of the largest size takes.
  if "$program" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 -artifact_prefix="$found" \
    build/fuzz/new/"$target" "tests/fuzz/corpus/$target" >"$log" 2>&1; then
    grep -E 'cov:|Done' "$log" | tail -n 2 || true
  else
    status=1
    tail -n 30 "$log"
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    echo "   finding in $target: $input"
    echo "   again: $program $input"
  fi
  if $keep; then
    "$program" -merge=1 "tests/fuzz/corpus/$target" build/fuzz/new/"$target" >>"$log" 2>&1 || status=1
  fi
done
end_phase
exit $status
