#!/usr/bin/env bash
# A coordinator with two CPU replicas of SmolLM2-135M: one serves, the other runs a batch of 100 prompts, whose progress is
# shown. Everything ends with the script. Builds first what is missing.
# usage: scripts/demo-cluster.sh [--no-build]
# shellcheck source=scripts/console.sh
source "$(dirname "$0")/console.sh"

build=true
case "${1:-}" in
  "") ;;
  --no-build) build=false ;;
  -h | --help) sed -n '2,4s/^# \?//p' "$0" && exit 0 ;;
  *) fail "unknown option $1 (see --help)" ;;
esac

cd "$repo_dir"
if $build; then
  scripts/deps.sh
  add_rust_to_path
  phase "Building (release)"
  run_logged build/log/configure.log cmake --preset release -D LLM_DIST_CUDA=AUTO
  run_logged build/log/build.log cmake --build build/release --target llm-dist llm_dist_mpi -j "$(jobs_that_fit)"
fi

binary=${LLM_DIST:-$repo_dir/build/release/launch/llm-dist}
model=$repo_dir/.models/SmolLM2-135M-Instruct.Q4_1.gguf
folder=$(mktemp -d)
coordinator=""

# The coordinator's end does not end its jobs: they are cancelled first.
end_all() {
  if [ -n "$coordinator" ] && kill -0 "$coordinator" 2>/dev/null; then
    for job in $(jobs_in QUEUED,STARTING,RUNNING,RECOVERING,SUSPENDED); do
      curl -fsS -o /dev/null -X POST "$url/v1/jobs/$job/cancel" || true
    done
    for _ in $(seq 1 200); do
      [ -n "$(jobs_in STARTING,RUNNING,CANCELLING,RECOVERING,FINALIZING)" ] || break
      sleep 0.1
    done
    kill -TERM "$coordinator"
    wait "$coordinator" 2>/dev/null || true
  fi
  rm -rf "$folder"
}
trap end_all EXIT

# field NAME: of the JSON object on standard input.
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
jobs_in() {
  curl -fsS "$url/v1/jobs?limit=100&state=$1" 2>/dev/null |
    python3 -c 'import json, sys; print(*[job["id"] for job in json.load(sys.stdin)["data"]])' || true
}

phase "Starting the coordinator"
cat >"$folder/models.json" <<END
{"models": {"smollm2": {"path": "$model", "arguments": ["--device", "cpu", "--max-model-len", "1024", "--threads", "1",
  "--kv-cache-memory-bytes", "134217728"]}}}
END
url=""
"$binary" coordinator --catalogue "$folder/models.json" --store "$folder/coordinator.db" --slots 2 --port 0 \
  --endpoint-file "$folder/url" 2>"$folder/log" &
coordinator=$!
for _ in $(seq 1 100); do
  if [ -s "$folder/url" ]; then break; fi
  kill -0 "$coordinator" 2>/dev/null || { cat "$folder/log" >&2; fail "the coordinator does not start"; }
  sleep 0.1
done
url=$(cat "$folder/url")
echo "   $url"
echo "   the dashboard: $url/dashboard"

phase "A replica that serves"
served=$(curl -fsS "$url/v1/jobs" -d '{"type":"serve","model":"smollm2"}' | field id)
for _ in $(seq 1 600); do
  state=$(curl -fsS "$url/v1/jobs/$served" | field state)
  [ "$state" != RUNNING ] || break
  [ "$state" != FAILED ] || { curl -fsS "$url/v1/jobs/$served/logs" >&2; fail "$served failed"; }
  sleep 0.2
done
[ "$state" = RUNNING ] || fail "$served is $state"
echo "   $served is $state"

phase "A batch of 100 prompts on another"
python3 - "$folder/requests.jsonl" <<'PYTHON'
import json, sys
with open(sys.argv[1], "w") as file:
    for a in range(1, 11):
        for b in range(1, 11):
            body = {"model": "smollm2", "temperature": 0, "max_tokens": 16,
                    "messages": [{"role": "user", "content": f"What is {a} plus {b}?"}]}
            line = {"custom_id": f"{a}+{b}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            print(json.dumps(line), file=file)
PYTHON
input=$(curl -fsS "$url/v1/files" -F purpose=batch -F "file=@$folder/requests.jsonl" | field id)
batch=$(curl -fsS "$url/v1/batches" -H 'Idempotency-Key: demo' -d "{\"input_file_id\":\"$input\",
  \"endpoint\":\"/v1/chat/completions\",\"completion_window\":\"24h\"}" | field id)
echo "   $input, $batch"
python3 - "$url" "$batch" <<'PYTHON'
import json, sys, time, urllib.request
url, batch = sys.argv[1:]
while True:
    with urllib.request.urlopen(f"{url}/v1/batches/{batch}") as reply:
        seen = json.load(reply)
    counts = seen["request_counts"]
    done, total = counts["completed"] + counts["failed"], counts["total"]
    bar = "#" * (40 * done // total)
    end = seen["status"] in ("completed", "failed", "expired", "cancelled")
    if sys.stdout.isatty() or end:
        print(f"\r   [{bar:<40}] {done}/{total} {seen['status']:<12}", end="\n" if end else "", flush=True)
    if end:
        break
    time.sleep(0.2)
if seen["status"] != "completed":
    sys.exit(f"the batch has not completed: {seen}")
with urllib.request.urlopen(f"{url}/v1/files/{seen['output_file_id']}/content") as reply:
    lines = [json.loads(line) for line in reply]
for line in lines[:3]:
    text = line["response"]["body"]["choices"][0]["message"]["content"].split("\n")[0]
    print(f"   {line['custom_id']}: {text}")
print(f"   … {len(lines)} answers")
PYTHON
"$binary" jobs --url "$url" | sed 's/^/   /'

phase "Ending everything"
end_all
trap - EXIT
end_phase
printf '   all: %s s\n' "$(seconds_since "$started_at")"
