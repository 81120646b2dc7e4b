#!/usr/bin/env bash
# Builds a fuzz target of tests/fuzz with clang and libFuzzer and runs it from its kept corpus, following the branches
# that its inputs reach.
# usage: scripts/fuzz.sh TARGET SECONDS
#   TARGET   safetensors, gguf, http, …: a folder of tests/fuzz/corpus; all: one after the other
#   SECONDS  how long each target runs
# What reached something new stays in build/fuzz/new/TARGET, and the next run goes on from there. A finding lies in
# build/fuzz/found/TARGET; it ends the script with status 1 and the command that runs it again.
# shellcheck source=scripts/console.sh
source "$(dirname "$0")/console.sh"

case "${1:-}" in
  -h | --help) sed -n '2,8s/^# \?//p' "$0" && exit 0 ;;
esac
[ $# -eq 2 ] || fail "usage: scripts/fuzz.sh TARGET SECONDS (see --help)"
[[ $2 =~ ^[1-9][0-9]*$ ]] || fail "SECONDS is a number from 1 on, not '$2'"
seconds=$2
cd "$repo_dir"
mapfile -t targets < <(ls tests/fuzz/corpus)
if [ "$1" != all ]; then
  [ -d "tests/fuzz/corpus/$1" ] || fail "no target $1; there are: all ${targets[*]}"
  targets=("$1")
fi

scripts/deps.sh --fuzz
add_rust_to_path
phase "Building (fuzz)"
run_logged build/log/configure-fuzz.log cmake --preset fuzz
run_logged build/log/build-fuzz.log cmake --build build/fuzz -j "$(jobs_that_fit)" --target "${targets[@]/%/_fuzz}"

# fuzz TARGET: false where it found something.
fuzz() {
  local program=build/fuzz/tests/fuzz/$1_fuzz found=build/fuzz/found/$1/ log=build/log/fuzz-$1.log input
  mkdir -p "$found" build/fuzz/new/"$1"
  # A template may take a quarter of a gigabyte, with the sanitizers several times as much.
  if "$program" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 -artifact_prefix="$found" \
    -print_final_stats=1 build/fuzz/new/"$1" tests/fuzz/corpus/"$1" >"$log" 2>&1; then
    awk '/ cov: /{ for (i = 1; i < NF; ++i) if ($i == "cov:") branches = $(i + 1) }
         /number_of_executed_units/{ runs = $2 }
         END { printf "   %d runs, %d branches reached\n", runs, branches }' "$log"
    return 0
  fi
  tail -n 30 "$log"
  input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
  echo "   a finding: ${input:-none was written; the whole log: $log}"
  echo "   again: $program $input"
  return 1
}

status=0
for target in "${targets[@]}"; do
  phase "$target, $seconds s"
  fuzz "$target" || status=1
done
end_phase
exit $status
