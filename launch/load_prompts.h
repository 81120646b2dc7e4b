// Random prompts for a load generator, as request bodies.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "launch/server_access.h"
#include "src/http/client.h"

namespace llm_dist::launch {

struct PromptOptions {
  std::string model;
  bool chat = false;
  int input_len = 128;     // tokens, or words where the server does not tokenize
  double range_ratio = 0;  // of input_len: RandomLengths
  int output_len = 128;
  double temperature = 0;
  bool ignore_eos = true;
};

class PromptMaker {
 public:
  // Asks the server for tokens of its model, once. An error is the server's, other than not serving
  // /tokenize.
  static Result<PromptMaker> create(http::Client& client, const ServerAccess& server, PromptOptions options);

  // `count` request bodies; the same for the same seed and server.
  Result<std::vector<std::string>> make(size_t count, uint64_t seed);
  // "random token ids" (drawn from `num_ids`) or "random words".
  std::string kind() const;
  size_t num_ids() const { return ids_.size(); }

 private:
  PromptMaker(http::Client& client, const ServerAccess& server, PromptOptions options)
      : client_(&client), server_(&server), options_(std::move(options)) {}
  Result<std::string> make_one(size_t length, std::mt19937_64& random);
  // Empty: the server does not serve the path.
  Result<std::string> ask(const std::string& path, const std::string& body, bool& served);

  http::Client* client_;
  const ServerAccess* server_;
  PromptOptions options_;
  std::vector<int32_t> ids_;  // of the server's model; empty: words
};

// Pronounceable, lower case, separated by blanks.
std::string random_words(size_t count, std::mt19937_64& random);

}  // namespace llm_dist::launch
