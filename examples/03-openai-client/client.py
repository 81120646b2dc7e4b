#!/usr/bin/env python3
"""Asks a running llm-dist server with the official openai client: one whole answer, then one streamed.

usage: client.py [URL [MODEL]]     by default http://127.0.0.1:8000 and smollm2
"""
import os
import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
model = sys.argv[2] if len(sys.argv) > 2 else "smollm2"
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("LLM_DIST_API_KEY", "unused"))

reply = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "What is the capital of France?"}],
    temperature=0,
    max_tokens=32,
)
print(reply.choices[0].message.content)
print(reply.choices[0].finish_reason, reply.usage.prompt_tokens, reply.usage.completion_tokens)

stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "What is the capital of France?"}],
    temperature=0,
    max_tokens=32,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        print(f"\n{chunk.usage.completion_tokens} tokens")
