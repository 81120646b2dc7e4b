//! How much text a token can cover: what the length of a text says about its number of tokens before it is encoded,
//! which takes a minute for what fills a request's body.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value as Json;
use tokenizers::{Model, ModelWrapper, Tokenizer};

/// NFC makes two bytes of seven at most (U+1FBE U+0308 U+0301 are U+0390).
const NFC_SHRINKS_BY: usize = 4;

fn json_of(part: Option<&impl Serialize>) -> Json {
    // What cannot be written is neither absent nor known.
    part.map_or(Json::Null, |p| serde_json::to_value(p).unwrap_or(Json::Bool(false)))
}

fn kind(part: &Json) -> &str {
    part["type"].as_str().unwrap_or_default()
}

fn all(parts: &Json) -> impl Iterator<Item = &Json> {
    parts.as_array().into_iter().flatten()
}

/// A text is at most so many times as long as what the normalizer makes of it.
fn shrinks_by(normalizer: &Json) -> Option<usize> {
    match kind(normalizer) {
        "" if normalizer.is_null() => Some(1),
        "NFC" => Some(NFC_SHRINKS_BY),
        "Prepend" => Some(1),
        "Replace" => {
            let (old, new) = (normalizer["pattern"]["String"].as_str()?, normalizer["content"].as_str()?);
            (new.len() >= old.len()).then_some(1)
        }
        "Sequence" => all(&normalizer["normalizers"]).try_fold(1usize, |by, n| by.checked_mul(shrinks_by(n)?)),
        _ => None,
    }
}

/// Whether it only cuts, and drops nothing.
fn keeps_text(pre_tokenizer: &Json) -> bool {
    match kind(pre_tokenizer) {
        "" => pre_tokenizer.is_null(),
        "ByteLevel" | "Metaspace" | "Digits" => true,
        "Split" | "Punctuation" => pre_tokenizer["behavior"].as_str().is_some_and(|b| b != "Removed"),
        "Sequence" => all(&pre_tokenizer["pretokenizers"]).all(keeps_text),
        _ => false,
    }
}

fn count(pre_tokenizer: &Json, wanted: &str) -> usize {
    let inside: usize = all(&pre_tokenizer["pretokenizers"]).map(|p| count(p, wanted)).sum();
    inside + usize::from(kind(pre_tokenizer) == wanted)
}

/// What tokens make of a text's bytes.
pub struct Coverage {
    /// The most bytes of text that one token covers.
    longest: usize,
    /// The others are left out of the tokens, or are an unknown one together: GPT-2's alphabet is not always complete.
    has_token: [bool; 256],
}

impl Coverage {
    /// None where any length of text can be dropped or become one token: white space beside an added token that takes
    /// it along, a normalizer not known here. `names`: all tokens. `spelling`: of a byte in GPT-2's alphabet.
    pub fn of(tokenizer: &Tokenizer, names: &HashMap<String, u32>, spelling: impl Fn(u8) -> char) -> Option<Self> {
        let normalizer = json_of(tokenizer.get_normalizer());
        let shrinks_by = shrinks_by(&normalizer)?;
        let pre_tokenizer = json_of(tokenizer.get_pre_tokenizer());
        let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
        let decorated = |part: &Option<String>| part.as_ref().is_some_and(|p| !p.is_empty());
        if !keeps_text(&pre_tokenizer)
            || decorated(&model.continuing_subword_prefix)
            || decorated(&model.end_of_word_suffix)
        {
            return None;
        }
        let num_byte_levels = count(&pre_tokenizer, "ByteLevel");
        let byte_level = num_byte_levels > 0;
        let mut has_token = [false; 256];
        for byte in 0..=255u8 {
            has_token[usize::from(byte)] = match byte_level {
                true => model.token_to_id(&spelling(byte).to_string()).is_some(),
                false => model.byte_fallback && model.token_to_id(&format!("<0x{byte:02X}>")).is_some(),
            };
        }
        // C0, C1 and F5 on are in no UTF-8. That others have no token can be told of a text's own bytes only.
        let complete = (0..=0xF4).filter(|b| !matches!(b, 0xC0 | 0xC1)).all(|b| has_token[b]);
        let own_bytes = normalizer.is_null() && num_byte_levels == 1 && count(&pre_tokenizer, "Metaspace") == 0;
        if !complete && !own_bytes {
            return None;
        }
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        if added.values().any(|t| t.lstrip || t.rstrip) {
            return None;
        }
        // In the alphabet a character stands for a byte; an added token is found in the text itself.
        let covers = |name: &String| if byte_level { name.chars().count() } else { name.len() };
        let longest = names.keys().map(covers).chain(added.values().map(|t| t.content.len())).max()?;
        Some(Coverage { longest: longest.max(1).checked_mul(shrinks_by)?, has_token })
    }

    /// The fewest tokens that `text` can be.
    pub fn fewest_tokens(&self, text: &[u8]) -> usize {
        text.iter().filter(|b| self.has_token[usize::from(**b)]).count().div_ceil(self.longest)
    }
}
