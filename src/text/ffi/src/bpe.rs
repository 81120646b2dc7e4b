//! Builds a byte-level BPE tokenizer from the vocabulary that a GGUF file carries.

use tokenizers::decoders::byte_level::ByteLevel as ByteLevelDecoder;
use tokenizers::models::bpe::{Vocab, BPE};
use tokenizers::{AddedToken, Tokenizer};

use crate::abi::{slice, Bytes};
use crate::post_processor::{put_around, Special};
use crate::pre_tokenizer::{by_name, Splitter};

const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

#[repr(C)]
pub struct BpeSpec {
    tokens: *const Bytes,
    num_tokens: usize,
    /// GGUF token types, one a token, or none at all (every token is normal).
    types: *const i32,
    num_types: usize,
    /// "left right", best first.
    merges: *const Bytes,
    num_merges: usize,
    pre_tokenizer: Bytes,
    /// Put in front and behind when special tokens are asked for; -1: none.
    bos_id: i64,
    eos_id: i64,
}

fn vocabulary(tokens: &[Bytes]) -> Result<(Vec<String>, Vocab), String> {
    let mut names = Vec::with_capacity(tokens.len());
    let mut vocab = Vocab::with_capacity(tokens.len());
    for (id, bytes) in tokens.iter().enumerate() {
        let name = bytes.as_str(&format!("token {id} of the GGUF vocabulary"))?.to_string();
        // Of two equal spellings the first id wins, as for every reader of the format.
        vocab.entry(name.clone()).or_insert(id as u32);
        names.push(name);
    }
    Ok((names, vocab))
}

fn merge_list(merges: &[Bytes], vocab: &Vocab) -> Result<Vec<(String, String)>, String> {
    let mut pairs = Vec::with_capacity(merges.len());
    for (rank, bytes) in merges.iter().enumerate() {
        let line = bytes.as_str(&format!("merge {rank} of the GGUF vocabulary"))?;
        // A byte-level token holds no space, but the first character may be one in a damaged file: look behind it.
        let space = line.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
        let (left, right) = space
            .map(|at| (&line[..at], &line[at + 1..]))
            .filter(|(_, right)| !right.is_empty())
            .ok_or_else(|| format!("merge {rank} of the GGUF vocabulary is '{line}': expected 'left right'"))?;
        for part in [left, right, &format!("{left}{right}")] {
            if !vocab.contains_key(part) {
                return Err(format!(
                    "merge {rank} of the GGUF vocabulary names '{part}', which is not a token: the file is damaged \
                     or was converted wrongly"
                ));
            }
        }
        pairs.push((left.to_string(), right.to_string()));
    }
    Ok(pairs)
}

fn add_special(tokenizer: &mut Tokenizer, names: &[String], types: &[i32]) {
    let of_type = |wanted: i32| -> Vec<AddedToken> {
        let is_wanted = |id: usize| types.get(id) == Some(&wanted) && !names[id].is_empty();
        let ids = (0..names.len()).filter(|id| is_wanted(*id));
        ids.map(|id| AddedToken::from(names[id].clone(), wanted == CONTROL).normalized(false)).collect()
    };
    tokenizer.add_special_tokens(&of_type(CONTROL));
    tokenizer.add_tokens(&of_type(USER_DEFINED));
}

/// None where `id` is -1.
fn special_at(names: &[String], id: i64, what: &str) -> Result<Option<Special>, String> {
    if id < 0 {
        return Ok(None);
    }
    let at = usize::try_from(id)
        .ok()
        .filter(|at| *at < names.len())
        .ok_or_else(|| format!("the GGUF file's {what} id {id} is outside its vocabulary of {} tokens", names.len()))?;
    Ok(Some(Special { name: names[at].clone(), id: at as u32 }))
}

/// A token as the file spells it: the text itself (control and user-defined tokens), or in the byte alphabet.
pub struct Spelling {
    pub name: String,
    pub is_text: bool,
}

/// The tokenizer, and the spelling of each id.
pub fn build(spec: &BpeSpec) -> Result<(Tokenizer, Vec<Spelling>), String> {
    let types = slice(spec.types, spec.num_types);
    let (names, vocab) = vocabulary(slice(spec.tokens, spec.num_tokens))?;
    if !types.is_empty() && types.len() != names.len() {
        return Err(format!("the GGUF vocabulary has {} tokens but {} token types", names.len(), types.len()));
    }
    let merges = merge_list(slice(spec.merges, spec.num_merges), &vocab)?;
    let Splitter { pre_tokenizer, normalizer, ignore_merges } =
        by_name(spec.pre_tokenizer.as_str("the pre-tokenizer's name")?)?;
    let model = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(ignore_merges).build();
    let mut tokenizer = Tokenizer::new(model.map_err(|e| format!("the GGUF vocabulary: {e}"))?);
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer));
    tokenizer.with_normalizer(normalizer);
    tokenizer.with_decoder(Some(ByteLevelDecoder::default()));
    add_special(&mut tokenizer, &names, types);
    put_around(&mut tokenizer, special_at(&names, spec.bos_id, "BOS")?, special_at(&names, spec.eos_id, "EOS")?)?;
    let is_text = |id: usize| matches!(types.get(id), Some(&CONTROL) | Some(&USER_DEFINED));
    let spellings = names.into_iter().enumerate().map(|(id, name)| Spelling { is_text: is_text(id), name });
    Ok((tokenizer, spellings.collect()))
}
