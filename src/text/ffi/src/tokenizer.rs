//! The tokenizer handle: encode, decode, and one walk over the vocabulary from which the C++ side builds its tables.

use std::collections::HashMap;
use std::ffi::c_void;
use std::str::FromStr;
use std::sync::{LazyLock, OnceLock};

use tokenizers::{DecoderWrapper, Tokenizer};

use crate::abi::{guard, slice, Bytes, IdSink, Sink};
use crate::bpe::{build, BpeSpec, Spelling};
use crate::coverage::Coverage;
use crate::post_processor::{replace, SpecialFlags};

/// Ids above this are a damaged file: the tables on the other side are indexed by id.
const MAX_VOCAB: u32 = 1 << 24;

pub struct Handle {
    tokenizer: Tokenizer,
    /// The same tokenizer with special tokens read as plain text; made on first use, since the vocabulary is copied.
    plain: OnceLock<Tokenizer>,
    /// From a GGUF file: index = id. Two ids may share a spelling there, which the crate's vocabulary cannot hold.
    spellings: Vec<Spelling>,
    vocab_size: u32,
    style: ByteStyle,
    coverage: Option<Coverage>,
}

/// How a token's spelling stands for bytes.
#[derive(Clone, Copy, PartialEq)]
enum ByteStyle {
    /// GPT-2's alphabet: a character a byte, and decoding is concatenation.
    ByteLevel,
    /// "▁" is a space, "<0x41>" a byte; decoding needs the decoder.
    Other { underline_is_space: bool, byte_fallback: bool },
}

impl ByteStyle {
    fn of(tokenizer: &Tokenizer) -> Self {
        if let Some(DecoderWrapper::ByteLevel(_)) = tokenizer.get_decoder() {
            return ByteStyle::ByteLevel;
        }
        let text = tokenizer.get_decoder().and_then(|d| serde_json::to_string(d).ok()).unwrap_or_default();
        ByteStyle::Other {
            underline_is_space: text.contains('\u{2581}'),
            byte_fallback: text.contains("\"ByteFallback\""),
        }
    }

    fn bytes(self, spelling: &str) -> Vec<u8> {
        match self {
            ByteStyle::ByteLevel => byte_level_bytes(spelling),
            ByteStyle::Other { underline_is_space, byte_fallback } => {
                if byte_fallback {
                    if let Some(byte) = fallback_byte(spelling) {
                        return vec![byte];
                    }
                }
                if underline_is_space {
                    return spelling.replace('\u{2581}', " ").into_bytes();
                }
                spelling.as_bytes().to_vec()
            }
        }
    }
}

fn fallback_byte(spelling: &str) -> Option<u8> {
    let digits = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// GPT-2's alphabet: printable Latin-1 stands for itself, the 68 other bytes for U+0100 and up, in order.
static ALPHABET: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100;
    let mut map = HashMap::new();
    for byte in 0..=255u8 {
        let code = if printable(byte) {
            u32::from(byte)
        } else {
            next += 1;
            next - 1
        };
        map.insert(char::from_u32(code).expect("below the surrogates"), byte);
    }
    map
});

fn alphabet_character(byte: u8) -> char {
    let found = ALPHABET.iter().find(|(_, b)| **b == byte);
    *found.expect("every byte has a character").0
}

/// The bytes a spelling stands for; a spelling with a character outside the alphabet (an added token) is itself.
fn byte_level_bytes(spelling: &str) -> Vec<u8> {
    let mapped: Option<Vec<u8>> = spelling.chars().map(|c| ALPHABET.get(&c).copied()).collect();
    mapped.unwrap_or_else(|| spelling.as_bytes().to_vec())
}

impl Handle {
    fn new(mut tokenizer: Tokenizer, spellings: Vec<Spelling>) -> Result<Self, String> {
        // A training-time truncation or padding in the file must not cut prompts.
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        let vocabulary = tokenizer.get_vocab(true);
        let largest = vocabulary.values().max().copied();
        let largest =
            largest.ok_or("the tokenizer's vocabulary is empty")?.max(spellings.len().saturating_sub(1) as u32);
        if largest >= MAX_VOCAB {
            return Err(format!("the tokenizer has a token with id {largest}; ids must be below {MAX_VOCAB}"));
        }
        let style = ByteStyle::of(&tokenizer);
        let coverage = Coverage::of(&tokenizer, &vocabulary, alphabet_character);
        let plain = OnceLock::new();
        Ok(Handle { tokenizer, plain, spellings, vocab_size: largest + 1, style, coverage })
    }

    fn with_special_as_text(&self) -> &Tokenizer {
        self.plain.get_or_init(|| {
            let mut copy = self.tokenizer.clone();
            copy.set_encode_special_tokens(true);
            copy
        })
    }

    fn visit(&self, mut each: impl FnMut(u32, &[u8], bool)) {
        let added = self.tokenizer.get_added_vocabulary();
        for id in 0..self.vocab_size {
            let special = added.get_added_tokens_decoder().get(&id).is_some_and(|t| t.special);
            match self.spellings.get(id as usize) {
                Some(Spelling { name, is_text: true }) => each(id, name.as_bytes(), special),
                Some(Spelling { name, is_text: false }) => each(id, &self.style.bytes(name), special),
                None => {
                    if let Some(name) = self.tokenizer.id_to_token(id) {
                        each(id, &self.style.bytes(&name), special);
                    }
                }
            }
        }
    }
}

fn give(out: *mut *mut Handle, handle: Handle) {
    // SAFETY: `out` is a valid place for one pointer (header contract).
    unsafe { *out = Box::into_raw(Box::new(handle)) };
}

fn borrow<'a>(handle: *const Handle) -> &'a Handle {
    // SAFETY: made by `give`, not yet freed (header contract).
    unsafe { &*handle }
}

#[no_mangle]
pub extern "C" fn llm_dist_tokenizer_from_json(
    json: Bytes,
    flags: *const SpecialFlags,
    out: *mut *mut Handle,
    error: Sink,
) -> i32 {
    guard(error, || {
        let text = json.as_str("tokenizer.json")?;
        let mut tokenizer = Tokenizer::from_str(text).map_err(|e| format!("tokenizer.json: {e}"))?;
        // SAFETY: null, or valid for the duration of the call (header contract).
        if let Some(flags) = unsafe { flags.as_ref() } {
            replace(&mut tokenizer, flags)?;
        }
        give(out, Handle::new(tokenizer, Vec::new())?);
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn llm_dist_tokenizer_from_bpe(spec: *const BpeSpec, out: *mut *mut Handle, error: Sink) -> i32 {
    guard(error, || {
        // SAFETY: a valid spec for the duration of the call (header contract).
        let (tokenizer, spellings) = build(unsafe { &*spec })?;
        give(out, Handle::new(tokenizer, spellings)?);
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn llm_dist_tokenizer_to_json(handle: *const Handle, json: Sink, error: Sink) -> i32 {
    guard(error, || {
        let text = borrow(handle).tokenizer.to_string(/* pretty */ true);
        json.put(text.map_err(|e| format!("internal: the tokenizer as JSON: {e}"))?.as_bytes());
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn llm_dist_tokenizer_free(handle: *mut Handle) {
    if !handle.is_null() {
        // SAFETY: made by `give` and freed once (header contract).
        drop(unsafe { Box::from_raw(handle) });
    }
}

#[no_mangle]
pub extern "C" fn llm_dist_tokenizer_encode(
    handle: *const Handle,
    text: Bytes,
    add_special_tokens: bool,
    parse_special_tokens: bool,
    ids: IdSink,
    error: Sink,
) -> i32 {
    guard(error, || {
        let handle = borrow(handle);
        let text = text.as_str("the text to tokenize")?;
        let tokenizer = if parse_special_tokens { &handle.tokenizer } else { handle.with_special_as_text() };
        let encoding = tokenizer.encode_fast(text, add_special_tokens).map_err(|e| format!("tokenizer: {e}"))?;
        ids.put(encoding.get_ids());
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn llm_dist_tokenizer_decode(
    handle: *const Handle,
    ids: *const u32,
    num_ids: usize,
    skip_special_tokens: bool,
    text: Sink,
    error: Sink,
) -> i32 {
    guard(error, || {
        let decoded = borrow(handle).tokenizer.decode(slice(ids, num_ids), skip_special_tokens);
        text.put(decoded.map_err(|e| format!("tokenizer: {e}"))?.as_bytes());
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn llm_dist_tokenizer_vocab_size(handle: *const Handle) -> u32 {
    borrow(handle).vocab_size
}

#[no_mangle]
pub extern "C" fn llm_dist_tokenizer_is_byte_level(handle: *const Handle) -> bool {
    borrow(handle).style == ByteStyle::ByteLevel
}

#[no_mangle]
pub extern "C" fn llm_dist_tokenizer_fewest_tokens(handle: *const Handle, text: Bytes) -> u64 {
    borrow(handle).coverage.as_ref().map_or(0, |c| c.fewest_tokens(text.as_slice())) as u64
}

#[no_mangle]
pub extern "C" fn llm_dist_tokenizer_token_to_id(handle: *const Handle, token: Bytes) -> i64 {
    let find = |token: &str| borrow(handle).tokenizer.token_to_id(token).map(i64::from);
    std::str::from_utf8(token.as_slice()).ok().and_then(find).unwrap_or(-1)
}

#[no_mangle]
pub extern "C" fn llm_dist_tokenizer_visit(
    handle: *const Handle,
    context: *mut c_void,
    each: extern "C" fn(*mut c_void, u32, *const u8, usize, bool),
    error: Sink,
) -> i32 {
    guard(error, || {
        borrow(handle).visit(|id, bytes, special| each(context, id, bytes.as_ptr(), bytes.len(), special));
        Ok(())
    })
}
