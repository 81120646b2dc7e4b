#!/usr/bin/env bash
# From a bare machine to an answer: installs what is missing, builds, starts `mpirun -np 2 llm-dist serve` on SmolLM2-135M,
# asks one question over HTTP and prints the answer as it streams.
# usage: scripts/quickstart.sh [--cuda] [--keep] [--np N] [QUESTION]
#   --cuda  also build for NVIDIA GPUs, with the host's CUDA toolkit or one unpacked into .deps/cuda. Without a GPU it builds
#           all the same and then runs on the CPU
#   --keep  leave the server running and print its address
#   --np N  ranks (tensor parallel degree): 2 by default, and no more than there are GPUs
# shellcheck source=scripts/console.sh
source "$(dirname "$0")/console.sh"

keep=false
with_cuda=false
ranks=""
question="What is the capital of France?"
while [ $# -gt 0 ]; do
  case $1 in
    --cuda) with_cuda=true ;;
    --keep) keep=true ;;
    --np) ranks=${2:?--np needs a number} && shift ;;
    -h | --help) sed -n '2,8s/^# \?//p' "$0" && exit 0 ;;
    -*) fail "unknown option $1 (see --help)" ;;
    *) question=$1 ;;
  esac
  shift
done

cd "$repo_dir"
deps_flags=() cmake_flags=(-D LLM_DIST_CUDA=AUTO)
if $with_cuda; then
  deps_flags=(--cuda)
  cmake_flags=(-D LLM_DIST_CUDA=ON)
fi
scripts/deps.sh "${deps_flags[@]}"
add_rust_to_path

phase "Building (release)"
if [ -z "${CXX:-}" ] && command -v ccache >/dev/null; then export CCACHE_DIR=${CCACHE_DIR:-$HOME/.cache/ccache}; fi
run_logged build/log/configure.log cmake --preset release "${cmake_flags[@]}"
run_logged build/log/build.log cmake --build build/release --target llm-dist llm_dist_mpi -j "$(jobs_that_fit)"

binary=$repo_dir/build/release/launch/llm-dist
model=$repo_dir/.models/SmolLM2-135M-Instruct.Q4_1.gguf
endpoint_file=$(mktemp)
server_log=$repo_dir/build/log/serve.log
server_pid=""

stop_server() {
  rm -f "$endpoint_file"
  [ -n "$server_pid" ] || return 0
  kill -TERM "$server_pid" 2>/dev/null || true
  wait "$server_pid" 2>/dev/null || true
}
trap stop_server EXIT

gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
modules=$repo_dir/build/release/lib/llm-dist
device=cpu
if [ -e "$modules/libllm_dist_cuda.so" ] && [ "$gpus" -gt 0 ]; then
  device=cuda
  # A rank has a GPU to itself, and several need NCCL.
  if [ ! -e "$modules/libllm_dist_nccl.so" ]; then
    echo "   NCCL was not found when this was built (LLM_DIST_NCCL_ROOT): one GPU"
    gpus=1
  fi
  [ -n "$ranks" ] || ranks=$((gpus < 2 ? gpus : 2))
elif $with_cuda; then
  echo "   built for GPUs ($modules/libllm_dist_cuda.so); this machine has none, so the ranks run on the CPU"
fi
ranks=${ranks:-2}

phase "Starting mpirun -np $ranks llm-dist serve --device $device"
# Binding is ours: mpirun's own would put every rank of a small machine on one core.
mpi_flags=(--oversubscribe --bind-to none)
[ "$(id -u)" -ne 0 ] || mpi_flags+=(--allow-run-as-root)
: >"$endpoint_file"
launch=(mpirun -np "$ranks" "${mpi_flags[@]}" "$binary" serve "$model" --device "$device" --port 0
  --endpoint-file "$endpoint_file" --served-model-name smollm2)
if $keep; then
  setsid "${launch[@]}" >"$server_log" 2>&1 </dev/null &
else
  "${launch[@]}" >"$server_log" 2>&1 </dev/null &
fi
server_pid=$!

url=""
for _ in $(seq 1 600); do
  kill -0 "$server_pid" 2>/dev/null || { tail -n 30 "$server_log" >&2; fail "the server ended; its log: $server_log"; }
  url=$(cat "$endpoint_file" 2>/dev/null || true)
  if [ -n "$url" ] && curl -fsS -o /dev/null "$url/readyz" 2>/dev/null; then break; fi
  url=""
  sleep 0.1
done
[ -n "$url" ] || { tail -n 30 "$server_log" >&2; fail "not ready within 60 s; its log: $server_log"; }

phase "Asking: $question"
python3 - "$url" "$question" <<'PYTHON'
import json, sys, time, urllib.request
url, question = sys.argv[1:]
body = {"model": "smollm2", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 128,
        "stream": True, "stream_options": {"include_usage": True}}
request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
begin, first, tokens = time.monotonic(), None, 0
print("\n   ", end="")
with urllib.request.urlopen(request) as response:
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
        for choice in event["choices"]:
            text = choice["delta"].get("content") or ""
            if text and first is None:
                first = time.monotonic()
            print(text, end="", flush=True)
end = time.monotonic()
if first is None:
    sys.exit("the server sent no text")
rate = (tokens - 1) / (end - first) if tokens > 1 and end > first else 0.0
print(f"\n\n   {tokens} tokens, first after {1000 * (first - begin):.0f} ms, then {rate:.0f} tokens/s")
PYTHON
end_phase

printf '   all: %s s\n' "$(seconds_since "$started_at")"
if $keep; then
  trap - EXIT
  rm -f "$endpoint_file"
  cat <<END
The server runs at $url (log: $server_log). Ask it:
  curl $url/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model":"smollm2","messages":[{"role":"user","content":"Why is the sky blue?"}]}'
End it: kill $server_pid
END
fi
