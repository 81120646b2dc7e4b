//! How GGUF's `tokenizer.ggml.pre` names split text before byte-level BPE. The names are llama.cpp's; each pattern
//! is what the `tokenizer.json` of the model of that name holds. One visible table, one row a family.

use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

enum Rule {
    /// GPT-2's own split.
    Gpt2,
    /// Each digit on its own, then GPT-2's split.
    SingleDigits,
    /// These regular expressions one after the other; each match is a piece of its own.
    Patterns(&'static [&'static str]),
}

struct Family {
    names: &'static [&'static str],
    rule: Rule,
    /// A word that is a token as a whole is taken without looking at the merges.
    ignore_merges: bool,
    nfc: bool,
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const DEFAULT: &[&str] = &[
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
];

const FAMILIES: &[Family] = &[
    Family {
        names: &["smollm", "starcoder", "refact", "command-r"],
        rule: Rule::SingleDigits,
        ignore_merges: false,
        nfc: false,
    },
    Family {
        names: &["llama-bpe", "llama3", "llama-v3"],
        rule: Rule::Patterns(&[LLAMA3]),
        ignore_merges: true,
        nfc: false,
    },
    Family { names: &["dbrx", "smaug-bpe"], rule: Rule::Patterns(&[LLAMA3]), ignore_merges: false, nfc: false },
    Family { names: &["qwen2", "deepseek-r1-qwen"], rule: Rule::Patterns(&[QWEN2]), ignore_merges: false, nfc: true },
    Family { names: &["gpt-2", "gpt2", "olmo", "phi-2"], rule: Rule::Gpt2, ignore_merges: false, nfc: false },
    Family { names: &["default", ""], rule: Rule::Patterns(DEFAULT), ignore_merges: false, nfc: false },
];

pub struct Splitter {
    pub pre_tokenizer: PreTokenizerWrapper,
    pub normalizer: Option<NormalizerWrapper>,
    pub ignore_merges: bool,
}

fn byte_level(use_regex: bool) -> PreTokenizerWrapper {
    ByteLevel::new(/* add_prefix_space */ false, /* trim_offsets */ true, use_regex).into()
}

fn steps(rule: &Rule) -> Result<Vec<PreTokenizerWrapper>, String> {
    Ok(match rule {
        Rule::Gpt2 => vec![byte_level(true)],
        Rule::SingleDigits => vec![Digits::new(true).into(), byte_level(true)],
        Rule::Patterns(patterns) => {
            let mut all = Vec::new();
            for pattern in *patterns {
                let regex = SplitPattern::Regex((*pattern).to_string());
                let split = Split::new(regex, SplitDelimiterBehavior::Isolated, false);
                all.push(split.map_err(|e| format!("internal: pattern {pattern}: {e}"))?.into());
            }
            all.push(byte_level(false));
            all
        }
    })
}

fn known_names() -> String {
    let names = FAMILIES.iter().flat_map(|f| f.names.iter()).filter(|n| !n.is_empty());
    names.copied().collect::<Vec<_>>().join(", ")
}

/// The splitter that a GGUF file names, or an error that lists the known names.
pub fn by_name(name: &str) -> Result<Splitter, String> {
    let family = FAMILIES.iter().find(|f| f.names.contains(&name)).ok_or_else(|| {
        format!(
            "unknown pre-tokenizer '{name}' in the GGUF file; known: {}. Give the model's tokenizer.json with \
             --tokenizer instead",
            known_names()
        )
    })?;
    Ok(Splitter {
        pre_tokenizer: Sequence::new(steps(&family.rule)?).into(),
        normalizer: family.nfc.then(|| NFC.into()),
        ignore_merges: family.ignore_merges,
    })
}
