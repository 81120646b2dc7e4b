#!/usr/bin/env python3
"""The official openai client's files and batches against a real coordinator, whose one replica is the small model on the
CPU. On the way the coordinator is killed once, and the replica.

LLM_DIST_PYTHON names a Python that has the package openai. Ends with 77 where program or model are missing.
"""
import importlib.util
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from kill_test import BINARY  # noqa: E402
from replicas_test import MODEL, Cluster  # noqa: E402

PATIENCE = 240
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def item(number, body):
    return {"custom_id": f"item-{number}", "method": "POST", "url": "/v1/completions",
            "body": {"model": "smollm2", "temperature": 0, **body}}


def wait_until(client, batch, condition, what):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        seen = client.batches.retrieve(batch)
        if condition(seen):
            return seen
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for the batch to be {what}: {seen}")


def lines_of(client, file):
    found = {}
    for line in client.files.content(file).text.splitlines():
        line = json.loads(line)
        assert line["custom_id"] not in found, f"twice: {line}"
        found[line["custom_id"]] = line
    return found


def check(cluster):
    import openai
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{cluster.port}/v1", api_key="unused")
    # One ends after the other, so that there is a middle.
    lengths = [4 + 18 * i for i in range(len(WORDS))]
    items = [item(i, {"prompt": f"Count on: {word},", "max_tokens": lengths[i], "ignore_eos": True})
             for i, word in enumerate(WORDS)]
    items[5]["body"]["max_tokens"] = 100_000  # more than the model has room for
    path = cluster.folder / "in.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in items))

    with open(path, "rb") as content:
        file = client.files.create(file=content, purpose="batch")
    assert (file.purpose, file.filename, file.bytes) == ("batch", "in.jsonl", path.stat().st_size), file
    assert client.files.retrieve(file.id) == file
    assert [each.id for each in client.files.list()] == [file.id]

    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h",
                                  metadata={"what": "test"})
    assert batch.status == "validating" and batch.request_counts.total == len(items), batch
    wait_until(client, batch.id, lambda b: b.request_counts.completed >= 2, "in progress")
    cluster.kill()
    cluster.start()
    wait_until(client, batch.id, lambda b: b.request_counts.completed >= 3, "going on, far from its end")
    for pid, line in cluster.processes().items():
        if "serve" in line and "keep" not in line:
            os.kill(pid, signal.SIGKILL)
    done = wait_until(client, batch.id, lambda b: b.status == "completed", "completed")
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (len(items), len(items) - 1, 1), done
    assert done.metadata == {"what": "test"} and done.errors is None, done
    assert done.in_progress_at <= done.finalizing_at <= done.completed_at < done.expires_at, done
    output, errors = lines_of(client, done.output_file_id), lines_of(client, done.error_file_id)
    assert list(output) == [f"item-{i}" for i in range(len(items)) if i != 5], list(output)
    for name, line in output.items():
        assert line["response"]["status_code"] == 200 and line["error"] is None, line
        assert line["response"]["body"]["choices"][0]["text"], line
        assert line["response"]["body"]["usage"]["completion_tokens"] == lengths[int(name[5:])], line
    assert errors["item-5"]["response"]["status_code"] == 400, errors
    assert {each.id for each in client.files.list(purpose="batch_output")} == {done.output_file_id, done.error_file_id}
    assert client.batches.list().data[0].id == batch.id
    job = cluster.call("GET", f"/v1/jobs/{batch.id.replace('batch', 'job')}")
    assert (job["state"], job["attempt"]) == ("SUCCEEDED", 2), job

    # Chat, a refusal, a cancellation.
    chat = {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "smollm2", "temperature": 0, "max_tokens": 16,
                     "messages": [{"role": "user", "content": "What is the capital of France?"}]}}
    asked = client.files.create(file=("chat.jsonl", json.dumps(chat).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=asked.id, endpoint="/v1/chat/completions", completion_window="24h")
    done = wait_until(client, batch.id, lambda b: b.status == "completed", "completed")
    answer = lines_of(client, done.output_file_id)["c"]["response"]["body"]["choices"][0]["message"]["content"]
    assert "Paris" in answer, answer
    twice = client.files.create(file=("twice.jsonl", (json.dumps(chat) + "\n").encode() * 2), purpose="batch")
    try:
        client.batches.create(input_file_id=twice.id, endpoint="/v1/chat/completions", completion_window="24h")
        raise AssertionError("a custom_id that is given twice was taken")
    except openai.BadRequestError as error:
        assert "line 2" in str(error), error
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    client.batches.cancel(batch.id)
    wait_until(client, batch.id, lambda b: b.status == "cancelled", "cancelled")
    assert client.files.delete(file.id).deleted
    try:
        client.files.retrieve(file.id)
        raise AssertionError("a deleted file is still there")
    except openai.NotFoundError:
        pass
    cluster.wait_for(lambda: not cluster.processes(), "every process to end")


def main():
    if not os.path.exists(BINARY) or not MODEL.exists():
        sys.exit(77)
    if importlib.util.find_spec("openai") is None:
        python = os.environ.get("LLM_DIST_PYTHON", sys.executable)
        if python == sys.executable:
            sys.exit("the package openai is missing: scripts/deps.sh --test makes .venv, and scripts/test.sh names it in "
                     "LLM_DIST_PYTHON")
        os.execv(python, [python, *sys.argv])
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(folder)
        cluster.start()
        try:
            check(cluster)
        except AssertionError:
            print((cluster.folder / "log").read_text()[-4000:], cluster.logs(), sep="\n", file=sys.stderr)
            raise
        finally:
            cluster.end()
    print("ok")


if __name__ == "__main__":
    main()
