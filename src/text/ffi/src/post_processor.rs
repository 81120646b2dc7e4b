//! The tokens that `add_special_tokens` puts around a text, as a post-processor of the crate.

use serde_json::{json, Map, Value};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::Tokenizer;

use crate::abi::Bytes;

/// What tokenizer_config.json says in place of tokenizer.json's post-processor.
#[repr(C)]
pub struct SpecialFlags {
    add_bos: bool,
    add_eos: bool,
    bos_token: Bytes,
    eos_token: Bytes,
}

pub struct Special {
    pub name: String,
    pub id: u32,
}

impl Special {
    fn find(tokenizer: &Tokenizer, name: Bytes) -> Option<Self> {
        let name = std::str::from_utf8(name.as_slice()).ok()?;
        Some(Special { name: name.to_string(), id: tokenizer.token_to_id(name)? })
    }

    fn piece(&self, type_id: u32) -> Value {
        json!({"SpecialToken": {"id": self.name, "type_id": type_id}})
    }
}

/// A token that is asked for but stands in no vocabulary leaves the file's own post-processor.
pub fn replace(tokenizer: &mut Tokenizer, flags: &SpecialFlags) -> Result<(), String> {
    let bos = Special::find(tokenizer, flags.bos_token);
    let eos = Special::find(tokenizer, flags.eos_token);
    if (flags.add_bos && bos.is_none()) || (flags.add_eos && eos.is_none()) {
        return Ok(());
    }
    put_around(tokenizer, bos.filter(|_| flags.add_bos), eos.filter(|_| flags.add_eos))
}

pub fn put_around(tokenizer: &mut Tokenizer, bos: Option<Special>, eos: Option<Special>) -> Result<(), String> {
    let any = bos.is_some() || eos.is_some();
    tokenizer.with_post_processor(if any { Some(template(bos, eos)?) } else { None });
    Ok(())
}

fn template(bos: Option<Special>, eos: Option<Special>) -> Result<TemplateProcessing, String> {
    let around = |sequence: &str, type_id: u32| {
        let first = bos.as_ref().map(|token| token.piece(type_id));
        let last = eos.as_ref().map(|token| token.piece(type_id));
        first.into_iter().chain([json!({"Sequence": {"id": sequence, "type_id": type_id}})]).chain(last)
    };
    let entry =
        |token: &Special| (token.name.clone(), json!({"id": token.name, "ids": [token.id], "tokens": [token.name]}));
    // As JSON: the crate's own notation of a template takes ':' and '$' in a token's name for its syntax.
    serde_json::from_value(json!({
        "type": "TemplateProcessing",
        "single": around("A", 0).collect::<Vec<_>>(),
        "pair": around("A", 0).chain(around("B", 1)).collect::<Vec<_>>(),
        "special_tokens": bos.iter().chain(&eos).map(entry).collect::<Map<_, _>>(),
    }))
    .map_err(|e| format!("internal: the post-processor: {e}"))
}
