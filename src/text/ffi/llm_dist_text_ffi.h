/* The C ABI of the Rust crate beside this header. Kept in step by hand with its #[repr(C)] types.
 *
 * Every argument is borrowed for the call. A result is written to the caller's sink before the call returns,
 * so no memory changes owner except handles (made by *_new / *_from_*, ended once by *_free). Functions that
 * can fail return LLM_DIST_FFI_OK or a code, with one line of text in `error`; a Rust panic arrives as
 * LLM_DIST_FFI_INTERNAL. A handle may be used by several threads at once. Callbacks must not throw. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  LLM_DIST_FFI_OK = 0,
  LLM_DIST_FFI_INVALID = 1,
  LLM_DIST_FFI_INTERNAL = 2,
  LLM_DIST_FFI_UNAVAILABLE = 3,
  LLM_DIST_FFI_DEADLINE = 4
};

typedef struct {
  const uint8_t* data; /* may be null when size is 0 */
  size_t size;
} llm_dist_ffi_bytes;

typedef struct {
  void* context;
  void (*write)(void* context, const uint8_t* data, size_t size);
} llm_dist_ffi_sink;

typedef struct {
  void* context;
  void (*write)(void* context, const uint32_t* ids, size_t count);
} llm_dist_ffi_id_sink;

typedef struct llm_dist_tokenizer llm_dist_tokenizer;
typedef struct llm_dist_chat_template llm_dist_chat_template;

typedef struct {
  const llm_dist_ffi_bytes* tokens; /* index = id */
  size_t num_tokens;
  const int32_t* types; /* GGUF token types, one a token, or none */
  size_t num_types;
  const llm_dist_ffi_bytes* merges; /* "left right", best first */
  size_t num_merges;
  llm_dist_ffi_bytes pre_tokenizer; /* GGUF tokenizer.ggml.pre */
  int64_t bos_id;                   /* put in front when special tokens are asked for; -1: none */
  int64_t eos_id;                   /* likewise behind */
} llm_dist_ffi_bpe_spec;

typedef struct {
  bool add_bos; /* put in front when special tokens are asked for */
  bool add_eos; /* likewise behind */
  llm_dist_ffi_bytes bos_token;
  llm_dist_ffi_bytes eos_token;
} llm_dist_ffi_special_flags;

typedef struct {
  bool add_generation_prompt;
  bool continue_final_message;
  llm_dist_ffi_bytes tools;  /* JSON array, or empty */
  llm_dist_ffi_bytes kwargs; /* JSON object, or empty */
  int64_t now_unix_s;        /* what strftime_now prints; negative: now */
  uint64_t timeout_ms;
} llm_dist_ffi_render_options;

/* `flags` replace the file's post-processor, which stays where they are null or name a token that the
 * vocabulary lacks. */
int32_t llm_dist_tokenizer_from_json(llm_dist_ffi_bytes json,
                                     const llm_dist_ffi_special_flags* flags,
                                     llm_dist_tokenizer** out,
                                     llm_dist_ffi_sink error);
int32_t llm_dist_tokenizer_from_bpe(const llm_dist_ffi_bpe_spec* spec,
                                    llm_dist_tokenizer** out,
                                    llm_dist_ffi_sink error);
void llm_dist_tokenizer_free(llm_dist_tokenizer* tokenizer);
/* A tokenizer.json of which the same tokenizer can be made. */
int32_t llm_dist_tokenizer_to_json(const llm_dist_tokenizer* tokenizer,
                                   llm_dist_ffi_sink json,
                                   llm_dist_ffi_sink error);

int32_t llm_dist_tokenizer_encode(const llm_dist_tokenizer* tokenizer,
                                  llm_dist_ffi_bytes text,
                                  bool add_special_tokens,
                                  bool parse_special_tokens,
                                  llm_dist_ffi_id_sink ids,
                                  llm_dist_ffi_sink error);
/* Unknown ids are left out. */
int32_t llm_dist_tokenizer_decode(const llm_dist_tokenizer* tokenizer,
                                  const uint32_t* ids,
                                  size_t num_ids,
                                  bool skip_special_tokens,
                                  llm_dist_ffi_sink text,
                                  llm_dist_ffi_sink error);
/* Largest id + 1. */
uint32_t llm_dist_tokenizer_vocab_size(const llm_dist_tokenizer* tokenizer);
/* Whether decoding is concatenating the tokens' bytes. */
bool llm_dist_tokenizer_is_byte_level(const llm_dist_tokenizer* tokenizer);
/* So many or more come of encoding it, found without that; 0 where nothing is known. */
uint64_t llm_dist_tokenizer_fewest_tokens(const llm_dist_tokenizer* tokenizer, llm_dist_ffi_bytes text);
/* -1 when there is no such token. */
int64_t llm_dist_tokenizer_token_to_id(const llm_dist_tokenizer* tokenizer, llm_dist_ffi_bytes token);
/* Calls `each` for every id in rising order, with the bytes that the token stands for. */
int32_t llm_dist_tokenizer_visit(
    const llm_dist_tokenizer* tokenizer,
    void* context,
    void (*each)(void* context, uint32_t id, const uint8_t* data, size_t size, bool special),
    llm_dist_ffi_sink error);

int32_t llm_dist_chat_template_new(llm_dist_ffi_bytes jinja,
                                   llm_dist_ffi_bytes bos_token,
                                   llm_dist_ffi_bytes eos_token,
                                   llm_dist_chat_template** out,
                                   llm_dist_ffi_sink error);
void llm_dist_chat_template_free(llm_dist_chat_template* chat_template);
/* False once too many renders of this process stand still: every other gets LLM_DIST_FFI_UNAVAILABLE. */
bool llm_dist_chat_template_can_render(void);
/* LLM_DIST_FFI_DEADLINE: the time is up, and the render goes on for nobody. While too many of those do,
 * LLM_DIST_FFI_UNAVAILABLE. */
int32_t llm_dist_chat_template_render(const llm_dist_chat_template* chat_template,
                                      llm_dist_ffi_bytes messages,
                                      const llm_dist_ffi_render_options* options,
                                      llm_dist_ffi_sink text,
                                      llm_dist_ffi_sink error);

#ifdef __cplusplus
}
#endif
