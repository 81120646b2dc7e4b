#!/usr/bin/env bash
# Builds and runs every tier of tests that this machine can run, and says which it cannot.
# usage: scripts/test.sh [--full]     --full: also every Slurm, fault and load case, fuzzing, ThreadSanitizer
# shellcheck source=scripts/console.sh
source "$(dirname "$0")/console.sh"

full=false
case "${1:-}" in
  "") ;;
  --full) full=true ;;
  -h | --help) sed -n '2,3s/^# \?//p' "$0" && exit 0 ;;
  *) fail "unknown option $1" ;;
esac

cd "$repo_dir"
scripts/deps.sh --test --cuda
add_rust_to_path
jobs=$(jobs_that_fit)
# Open MPI refuses root, and more ranks than cores, unless told.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none

phase "Style"
scripts/style.sh
phase "Building (asan)"
run_logged build/log/configure-asan.log cmake --preset asan \
  -D LLM_DIST_TEST_BINARY="$repo_dir/build/release/launch/llm-dist"
run_logged build/log/build-asan.log cmake --build build/asan -j "$jobs"
phase "Building (release, CUDA and NCCL modules and the GPU tests)"
run_logged build/log/configure.log cmake --preset release -D LLM_DIST_CUDA=ON -D LLM_DIST_TESTS=ON
run_logged build/log/build.log cmake --build build/release -j "$jobs" --target llm-dist llm_dist_mpi \
  llm_dist_cuda llm_dist_cuda_ampere llm_dist_nccl llm_dist_p2p_ampere cuda_ops_test cuda_backend_test \
  cuda_golden_test comm_nccl_test comm_p2p_test comm_p2p_bench cluster_simulation_test

phase "clang-tidy on changed files"
scripts/tidy.sh build/asan build/release

phase "Tests"
export LLM_DIST_PYTHON=$repo_dir/.venv/bin/python3
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1
export LSAN_OPTIONS=suppressions=$repo_dir/tests/lsan.supp
status=0
tiers="cpu, ranks, fault" not_run="" left_out=gpu
if [ "$(id -u)" -eq 0 ]; then
  tiers+=", slurm"
else
  not_run="slurm (needs root), " left_out+="|slurm"
fi
ctest --test-dir build/asan --output-on-failure --timeout 900 -j 1 -LE "$left_out" || status=1
# Ten thousand seeds: without a sanitizer, on every core.
LLM_DIST_FULL=1 ctest --test-dir build/release --output-on-failure --no-tests=error -R '^cluster_simulation_test$' || status=1
if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then
  scripts/gpu_tests.sh || status=1
  tiers+=", gpu"
else
  not_run+="gpu (no NVIDIA GPU here), "
fi
if $full; then
  phase "Tests (the long ones)"
  tiers+=", fuzz, tsan"
  LLM_DIST_FULL=1 ctest --test-dir build/asan --output-on-failure -j 1 \
    -R '^(fault|ranks_load|ranks_soak|slurm|engine_test|cluster_store_test|cluster_kill|cluster_chaos)$' -LE "$left_out" || status=1
  phase "Fuzzing"
  scripts/fuzz.sh all 60 || status=1
  phase "ThreadSanitizer"
  run_logged build/log/configure-tsan.log cmake --preset tsan
  run_logged build/log/build-tsan.log cmake --build build/tsan -j "$jobs"
  TSAN_OPTIONS="suppressions=$repo_dir/tests/tsan.supp halt_on_error=0 exitcode=66" \
    ctest --test-dir build/tsan --output-on-failure --timeout 1800 -L cpu || status=1
else
  not_run+="fuzz and tsan (--full), "
fi
end_phase
not_run=${not_run%, }
echo "   tiers run: $tiers. Not run: ${not_run:-none}"
printf '   all: %s s\n' "$(seconds_since "$started_at")"
exit $status
