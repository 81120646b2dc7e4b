"""Writes smollm2_encodings.tsv: SmolLM2's ids for awkward texts, by Hugging Face's Python tokenizers.

Usage: make_smollm2_encodings.py SmolLM2-135M-Instruct.Q4_1.gguf > smollm2_encodings.tsv   (needs gguf, tokenizers)
Each line: the text as a JSON string, a tab, the ids separated by spaces.
"""

import json
import sys

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TEXTS = [
    "", " ", "\n", "The capital of France is", "The capital of France is Paris.", " leading and trailing ",
    "two  spaces   three\n\n\nlines\t\ttabs \r\n", "It's we'll I'M don't they've", "12345 3.14159 1,000,000 ½ ²",
    "naïve café Zürich Ελληνικά русский العربية हिन्दी ไทย", "你好，世界！これは日本語です。한국어", "🙂👩‍👩‍👧‍👦🇫🇷 e\u0301",
    "def f(x):\n    return x**2  # comment\n", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "a<|im_end|>b <|not_special|>", "http://example.com/a?b=c&d=%20", "\u00a0nbsp\u2003em\u200bzero", "\u0000\u0001\u007f",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "{\"key\": [1, 2.5, null, true]}", "I've got 99 problems; 7th of May, 2024.",
]


def tokenizer_of(path):
    fields = GGUFReader(path).fields
    tokens, types, merges = (fields["tokenizer.ggml." + n].contents() for n in ("tokens", "token_type", "merges"))
    model = models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ", 1)) for m in merges])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, types) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return tokenizer


if __name__ == "__main__":
    reference = tokenizer_of(sys.argv[1])
    for text in TEXTS:
        print(json.dumps(text), " ".join(map(str, reference.encode(text).ids)), sep="\t")
