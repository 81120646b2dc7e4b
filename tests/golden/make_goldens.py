#!/usr/bin/env python3
"""Makes the golden models: tiny Llama checkpoints with what Hugging Face transformers computes from them.

    pip install torch transformers safetensors    # 2.15 and 5.23 made the committed ones
    python3 tests/golden/make_goldens.py tests/golden/data [NAME ...]    # all of them, or these

Each starts from random weights and is then trained for a few seconds to continue random prompts with random tokens:
its logits have clear winners, so that greedy tokens do not hang on rounding, and every part of the model matters for
them. Weights are rounded to the stored type first; the reference runs in double precision. Beside the checkpoint:

    golden.txt      "prompt …" and "tokens …", one line each a prompt, and "gap …", the least difference of the two
                    highest logits at any step
    logits.f32      [prompts, steps, vocabulary], native floats: at the prompt's last position, then at each token
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

STEPS = 32
PROMPT_LENGTHS = [3, 9, 14, 21]  # in blocks of 4: one to six
LEAST_GAP = 2.0

CASES = {
    # Nothing divides: 9 query and 3 KV heads, vocabulary 131, 5 layers; heads wider than an odd hidden size; tied.
    "grouped": dict(
        dtype=torch.bfloat16,
        shards=1,
        config=dict(
            hidden_size=27,
            num_hidden_layers=5,
            num_attention_heads=9,
            num_key_value_heads=3,
            head_dim=16,
            intermediate_size=50,
            vocab_size=131,
            tie_word_embeddings=True,
            rope_theta=10000.0,
            rms_norm_eps=1e-5,
        ),
    ),
    # Long-context frequencies, a head of its own, as many KV heads as query heads; eight ranks in every layout.
    "llama3": dict(
        dtype=torch.bfloat16,
        shards=1,
        config=dict(
            hidden_size=40,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=8,
            head_dim=16,
            intermediate_size=56,
            vocab_size=97,
            tie_word_embeddings=False,
            rope_theta=10000.0,
            rms_norm_eps=1e-6,
            rope_scaling=dict(
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        ),
    ),
    # One KV head for five query heads, half precision, several files with an index.
    "multiquery": dict(
        dtype=torch.float16,
        shards=3,
        config=dict(
            hidden_size=40,
            num_hidden_layers=4,
            num_attention_heads=5,
            num_key_value_heads=1,
            head_dim=8,
            intermediate_size=64,
            vocab_size=113,
            tie_word_embeddings=False,
            rope_theta=500.0,
            rms_norm_eps=1e-5,
        ),
    ),
    # Heads as wide as those of large models, which GPUs give to other kernels, and prompts of several of their tiles.
    "wide_heads": dict(
        dtype=torch.bfloat16,
        shards=1,
        prompt_lengths=[5, 37, 90, 170],
        max_positions=256,
        config=dict(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=128,
            intermediate_size=48,
            vocab_size=89,
            tie_word_embeddings=True,
            rope_theta=500000.0,
            rms_norm_eps=1e-5,
        ),
    ),
}


def max_positions(case):
    return case.get("max_positions", 128)


def train(model, sequences):
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    for step in range(1500):
        loss = 0.0
        for prompt_length, tokens in sequences:
            logits = model(tokens[None]).logits[0, prompt_length - 1 : -1]
            loss = loss + torch.nn.functional.cross_entropy(logits, tokens[prompt_length:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.02 * len(sequences):
            break
    print(f"  {step + 1} steps of training, loss {loss.item() / len(sequences):.4f}")


@torch.no_grad()
def reference(model, prompt):
    """Greedy tokens and the logits that each was taken from, without a cache."""
    tokens, rows = list(prompt), []
    for _ in range(STEPS):
        rows.append(model(torch.tensor([tokens])).logits[0, -1])
        tokens.append(int(rows[-1].argmax()))
    return tokens[len(prompt) :], torch.stack(rows)


def save_checkpoint(model, dtype, shards, folder):
    state = {name: value.detach().to(dtype).contiguous() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    if shards == 1:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(state)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        mine = names[shard::shards]
        save_file({name: state[name] for name in mine}, folder / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in mine})
    index = {"metadata": {"total_size": sum(v.nbytes for v in state.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def write_config(case, folder):
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", **case["config"])
    config.update(attention_bias=False, mlp_bias=False, max_position_embeddings=max_positions(case))
    config.update(bos_token_id=1, eos_token_id=0)
    config["torch_dtype"] = str(case["dtype"]).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def make(name, case, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(20):
        print(f"{name}: seed {seed}")
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                **case["config"],
                max_position_embeddings=max_positions(case),
                initializer_range=0.1,
                attn_implementation="eager",
            )
        )
        vocabulary = case["config"]["vocab_size"]
        sequences = [(n, torch.randint(2, vocabulary, (n + STEPS,))) for n in case.get("prompt_lengths", PROMPT_LENGTHS)]
        train(model, sequences)
        model = model.double().eval()
        for parameter in model.parameters():  # not model.to(): it would round the rotary frequencies as well
            parameter.data = parameter.data.to(case["dtype"]).double()
        prompts = [tokens[:n].tolist() for n, tokens in sequences]
        results = [reference(model, prompt) for prompt in prompts]
        top = torch.stack([rows for _, rows in results]).topk(2, dim=-1).values
        gap = float((top[..., 0] - top[..., 1]).min())
        print(f"  gap {gap:.2f}, logits up to {float(top.max()):.1f}")
        if gap >= LEAST_GAP:
            break
    save_checkpoint(model, case["dtype"], case["shards"], folder)
    write_config(case, folder)
    lines = [f"gap {gap:.3f}"]
    for prompt, (tokens, _) in zip(prompts, results):
        lines.append("prompt " + " ".join(map(str, prompt)))
        lines.append("tokens " + " ".join(map(str, tokens)))
    (folder / "golden.txt").write_text("\n".join(lines) + "\n")
    logits = torch.stack([rows for _, rows in results]).to(torch.float32).contiguous()
    (folder / "logits.f32").write_bytes(logits.numpy().tobytes())


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[2:] or CASES:
        make(name, CASES[name], pathlib.Path(sys.argv[1]) / name)
