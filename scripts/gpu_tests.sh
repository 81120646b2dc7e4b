#!/usr/bin/env bash
# Every test that needs GPUs, side by side where they need different ones or wait for their own start most of the time.
# usage: scripts/gpu_tests.sh [--build DIR] [GROUP…]
#   --build DIR  where they were built; build/release unless said otherwise
#   GROUP        ops goldens conformance servers; all of them unless some are named
# One line a test; logs are in build/log/gpu. Fails where one fails.
# shellcheck source=scripts/console.sh
source "$(dirname "$0")/console.sh"
cd "$repo_dir"

build=build/release
groups=()
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=${2:?--build needs a folder} && shift ;;
    -h | --help) sed -n '2,6s/^# \?//p' "$0" && exit 0 ;;
    ops | goldens | conformance | servers) groups+=("$1") ;;
    *) fail "unknown argument $1 (see --help)" ;;
  esac
  shift
done
[ ${#groups[@]} -gt 0 ] || groups=(ops goldens conformance servers)
build=$(realpath "$build")
tests=$build/tests
num_gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU ' || true)
[ "$num_gpus" -gt 0 ] || fail "no NVIDIA GPU is here"
logs=$repo_dir/build/log/gpu
rm -rf "$logs"
mkdir -p "$logs"
# Open MPI refuses root, and more ranks than cores, unless told.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none
export LLM_DIST_BINARY=$build/launch/llm-dist

limit_s=900  # of one test

# check NAME COMMAND…
check() {
  local name=$1 log=$logs/$1.log began=$EPOCHREALTIME status=0 word
  shift
  timeout "$limit_s" "$@" >"$log" 2>&1 || status=$?
  case $status in
    0) word=ok ;;
    124) word="TOO LONG" ;;
    *) word=FAILED ;;
  esac
  # A name that no test has is no success, and here nothing is to be skipped as a whole.
  if [ $status -eq 0 ] && grep -qF '[  PASSED  ] 0 tests' "$log" && ! grep -qF '[  SKIPPED ]' "$log"; then
    status=1 word=EMPTY
  fi
  [ $status -eq 0 ] || echo "$name" >>"$logs/failed"
  printf '   %-9s %-18s %6s s   %s\n' "$word" "$name" "$(seconds_since "$began")" \
    "$(grep -aE '^\[  PASSED  \]|^Ran ' "$log" | tail -n 1)"
}

# shards NAME COUNT GPUS COMMAND…: each with another part of the tests, side by side. GPUS: "all", or how many each has for
# itself.
shards() {
  local name=$1 count=$2 gpus=$3 i visible
  shift 3
  for ((i = 0; i < count; ++i)); do
    visible=$(seq -s , 0 $((num_gpus - 1)))
    [ "$gpus" = all ] || visible=$(seq -s , $((i * gpus)) $((i * gpus + gpus - 1)))
    check "$name$([ "$count" -eq 1 ] || echo "-$i")" env CUDA_VISIBLE_DEVICES="$visible" GTEST_TOTAL_SHARDS="$count" \
      GTEST_SHARD_INDEX="$i" "$@" &
  done
  wait
}

ops() {
  shards backend 1 1 "$tests/device/cuda_backend_test"
  shards ops "$num_gpus" 1 "$tests/kernels/cuda_ops_test"
}

# Most of a golden's time is NCCL's start, over and over.
goldens() { shards golden 6 all "$tests/golden/cuda_golden_test"; }

# p2p SIZE SHARDS GPUS: groups of so many ranks, or all of them on one GPU where there are too few.
p2p() {
  if [ "$num_gpus" -ge "$1" ]; then
    shards "p2p-With$1" "$2" "$3" "$tests/comm/comm_p2p_test" --gtest_filter="*With$1*"
  else
    shards "p2p-With$1-on-one" 1 1 env LLM_DIST_TEST_RANKS_SHARE_GPU=1 "$tests/comm/comm_p2p_test" --gtest_filter="*With$1*"
  fi
}

conformance() {
  p2p 2 $((num_gpus / 2)) 2
  p2p 3 1 all
  p2p 4 1 all
  [ "$num_gpus" -ge 2 ] || { echo "   skipped: the others want two GPUs" && return; }
  # Filters know no sets of characters.
  shards p2p-others 1 all "$tests/comm/comm_p2p_test" --gtest_filter='-*With2*:*With3*:*With4*'
  # Memory of another process is opened another way than that of another thread.
  if command -v mpirun >/dev/null; then
    shards p2p-processes $((num_gpus / 2)) 2 mpirun -np 2 "$tests/comm/comm_p2p_test" --gtest_filter='*With2*:P2pMessagesOfTwo*'
  else
    echo "   skipped   p2p-processes: mpirun is not installed"
  fi
  shards nccl 1 all "$tests/comm/comm_nccl_test"
}

servers() {
  local off=(--disable-custom-all-reduce --disable-custom-hand-off --disable-custom-linear --disable-custom-attention
    --disable-custom-sampling --disable-persistent-kernels --disable-pdl --disable-autotune --disable-last-layer-pruning
    --disable-stream-waits --sequence-parallel off)
  check servers python3 tests/ranks/gpu_test.py -v
  check servers-all-off env LLM_DIST_GPU_FLAGS="${off[*]}" python3 tests/ranks/gpu_test.py -v -k many_streams
  grep -ahE '^  TP' "$logs"/servers*.log || true
}

for group in "${groups[@]}"; do
  phase "GPU tests: $group"
  "$group"
done
end_phase
if [ -e "$logs/failed" ]; then
  while read -r name; do
    echo "== The end of $name"
    tail -n 40 "$logs/$name.log"
  done <"$logs/failed"
  fail "failed: $(paste -sd ' ' "$logs/failed"); see $logs"
fi
