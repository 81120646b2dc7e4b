#!/usr/bin/env python3
"""The official openai client against a running server.

usage: LLM_DIST_URL=http://127.0.0.1:8000 [LLM_DIST_API_KEY=KEY] openai_client_test.py
Needs the package `openai`. Exits 1 at the first thing that is not as the client's users expect.
"""
import os
import sys

import openai

URL = os.environ.get("LLM_DIST_URL", "http://127.0.0.1:8000").rstrip("/")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def check(condition, message):
    if not condition:
        sys.exit(f"openai_client_test: {message}")


def expect_error(kind, param, call):
    try:
        call()
    except kind as error:
        check(error.param == param, f"{kind.__name__} names {error.param!r}, not {param!r}")
        check(error.type == "invalid_request_error", f"type {error.type!r}")
        return error
    sys.exit(f"openai_client_test: no {kind.__name__} about {param}")


def test_models(client):
    models = client.models.list().data
    check(len(models) >= 1, "no model is listed")
    check(client.models.retrieve(models[0].id).id == models[0].id, "retrieve() gives another model")
    return models[0].id


def test_chat(client, model):
    reply = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=24, temperature=0)
    choice = reply.choices[0]
    check(reply.object == "chat.completion" and choice.message.role == "assistant", "shape of a chat reply")
    check(choice.message.content, "an empty answer")
    check(choice.finish_reason in ("stop", "length"), f"finish_reason {choice.finish_reason}")
    usage = reply.usage
    check(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, "usage does not add up")
    check(0 < usage.completion_tokens <= 24, f"{usage.completion_tokens} completion tokens")
    check(usage.prompt_tokens_details.cached_tokens == 0, "cached_tokens")
    return choice.message.content


def test_chat_stream(client, model, expected):
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=24, temperature=0, stream=True,
        stream_options={"include_usage": True})
    text, reasons, usage, roles = "", [], None, []
    for chunk in stream:
        check(usage is None, "a chunk after the usage")
        usage = chunk.usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            roles += [choice.delta.role] if choice.delta.role else []
            reasons += [choice.finish_reason] if choice.finish_reason else []
    check(text == expected, f"streamed {text!r}, whole {expected!r}")
    check(len(reasons) == 1 and roles == ["assistant"], f"reasons {reasons}, roles {roles}")
    check(usage is not None and usage.completion_tokens > 0, "no usage at the end")


def test_completions(client, model):
    prompt = ["The capital of France is", "One, two, three,"]
    reply = client.completions.create(model=model, prompt=prompt, max_tokens=8, temperature=0, n=2, seed=1)
    check([choice.index for choice in reply.choices] == [0, 1, 2, 3], "two prompts of two choices")
    check(all(choice.text for choice in reply.choices), "an empty completion")
    text = ""
    for chunk in client.completions.create(model=model, prompt=prompt[0], max_tokens=8, temperature=0, stream=True):
        text += chunk.choices[0].text
    check(text == reply.choices[0].text, f"streamed {text!r}, whole {reply.choices[0].text!r}")
    stopped = client.completions.create(model=model, prompt=prompt[0], max_tokens=8, temperature=0, stop=text[2:4])
    check(stopped.choices[0].text == text[:text.find(text[2:4])], f"stop gave {stopped.choices[0].text!r}")
    check(stopped.choices[0].finish_reason == "stop", "finish_reason after a stop string")


def test_logprobs(client, model):
    reply = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3)
    content = reply.choices[0].logprobs.content
    check(bytes(b for token in content for b in token.bytes).decode() == reply.choices[0].message.content,
          "the tokens' bytes are not the text")
    for token in content:
        check(token.logprob <= 0 and len(token.top_logprobs) == 3, "log-probabilities of a chat")
        check(abs(token.top_logprobs[0].logprob - token.logprob) < 1e-3, "greedy did not take the likeliest")
    reply = client.completions.create(model=model, prompt="Paris is", max_tokens=4, temperature=0, logprobs=2)
    logprobs = reply.choices[0].logprobs
    check(len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset), "lengths differ")
    check("".join(logprobs.tokens) == reply.choices[0].text, "the tokens are not the text")


def test_scores(client, model):
    complete = client.completions.create
    reply = complete(model=model, prompt="The capital of France is", max_tokens=3, temperature=0, echo=True, logprobs=1)
    text, logprobs = reply.choices[0].text, reply.choices[0].logprobs
    check(text.startswith("The capital of France is") and "".join(logprobs.tokens) == text, f"echoed {text!r}")
    check(logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None, "the first token is scored")
    check(len(logprobs.token_logprobs) == reply.usage.total_tokens, "a token without a score")
    scored = complete(model=model, prompt=text, max_tokens=0, echo=True, logprobs=1).choices[0]
    check(scored.text == text, f"echoed {scored.text!r}")
    if scored.logprobs.tokens == logprobs.tokens:
        for once, again in zip(logprobs.token_logprobs[1:], scored.logprobs.token_logprobs[1:]):
            check(abs(once - again) < 0.05, f"written {logprobs.token_logprobs}, read {scored.logprobs.token_logprobs}")
    best = complete(model=model, prompt="Once", max_tokens=6, seed=3, best_of=4)
    check(len(best.choices) == 1 and best.usage.completion_tokens > 6, "best_of")


def test_token_rules(client, model):
    def complete(**fields):
        return client.completions.create(
            model=model, prompt="One, two, three,", max_tokens=12, temperature=0, logprobs=0, **fields).choices[0]

    plain = complete()
    word = next(token.strip() for token in plain.logprobs.tokens if token.strip().isalpha())
    tokens = [token.strip() for token in complete(extra_body={"bad_words": [word]}).logprobs.tokens]
    check(word not in tokens, f"{word!r} was generated: {tokens}")
    tokens = complete(extra_body={"no_repeat_ngram_size": 1}).logprobs.tokens
    check(len(set(tokens)) == len(tokens), f"repeated in {tokens}")
    tokens = complete(extra_body={"allowed_token_ids": [100, 200], "min_tokens": 4}).logprobs.tokens
    check(0 < len(set(tokens)) <= 2, f"two tokens were allowed, not {tokens}")
    tokens = complete(logit_bias={"300": 100}).logprobs.tokens
    check(len(set(tokens)) == 1, f"one token was favoured, not {tokens}")


def test_errors(client, model):
    chat = client.chat.completions.create
    expect_error(openai.NotFoundError, "model", lambda: chat(model="no-such-model", messages=QUESTION))
    expect_error(openai.BadRequestError, "temperature", lambda: chat(model=model, messages=QUESTION, temperature=9))
    expect_error(openai.BadRequestError, "messages", lambda: chat(model=model, messages=[]))
    expect_error(openai.BadRequestError, "tools", lambda: chat(
        model=model, messages=QUESTION, tools=[{"type": "function", "function": {"name": "f"}}]))
    error = expect_error(openai.BadRequestError, "temprature", lambda: chat(
        model=model, messages=QUESTION, extra_body={"temprature": 1}))
    check("temperature" in error.message, "the nearest field is not named")
    error = expect_error(openai.BadRequestError, "prompt", lambda: client.completions.create(
        model=model, prompt=[1] * 200000, max_tokens=1))
    check(error.code == "context_length_exceeded", f"code {error.code!r}")


def main():
    client = openai.OpenAI(
        base_url=URL + "/v1", api_key=os.environ.get("LLM_DIST_API_KEY", "none"), timeout=120, max_retries=0)
    model = test_models(client)
    answer = test_chat(client, model)
    test_chat_stream(client, model, answer)
    test_completions(client, model)
    test_logprobs(client, model)
    test_scores(client, model)
    test_token_rules(client, model)
    test_errors(client, model)
    print(f"openai_client_test: openai {openai.__version__} and {model} agree; the answer was {answer!r}")


if __name__ == "__main__":
    main()
