#!/usr/bin/env python3
"""Runs a file of requests as a batch with the official openai client, shows its progress and prints the answers.

usage: batch.py [FILE [URL]]     by default requests.jsonl beside this file, and http://127.0.0.1:8080
"""
import json
import os
import pathlib
import sys
import time

from openai import OpenAI

path = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("requests.jsonl"))
url = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8080"
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("LLM_DIST_API_KEY", "unused"))

endpoint = json.loads(path.read_text().splitlines()[0])["url"]
with open(path, "rb") as requests:
    uploaded = client.files.create(file=requests, purpose="batch")
batch = client.batches.create(input_file_id=uploaded.id, endpoint=endpoint, completion_window="24h")
print(uploaded.id, batch.id)

shown = ""
while True:
    batch = client.batches.retrieve(batch.id)
    counts = batch.request_counts
    state = f"{batch.status} {counts.completed + counts.failed}/{counts.total}"
    if state != shown:
        print(state, flush=True)
    shown = state
    if batch.status in ("completed", "failed", "expired", "cancelled"):
        break
    time.sleep(0.2)

for file in (batch.output_file_id, batch.error_file_id):
    for line in client.files.content(file).text.splitlines() if file else ():
        item = json.loads(line)
        body = (item["response"] or {}).get("body", {})
        if "choices" in body:
            choice = body["choices"][0]
            text = choice["message"]["content"] if "message" in choice else choice["text"]
        else:
            text = item["error"] or body
        print(f"{item['custom_id']}: {text}")
