//! The Rust half of llm-dist's `src/text`: Hugging Face `tokenizers` and `minijinja` behind the plain C ABI of
//! `llm_dist_text_ffi.h`. One module a concern; `abi` is the only one that knows the boundary's rules
//! (borrowed slices in, bytes out through a sink, no panic across). Keep the header in step by hand.

mod abi;
mod bpe;
mod coverage;
mod json;
mod memory;
mod post_processor;
mod pre_tokenizer;
mod template;
mod tokenizer;
