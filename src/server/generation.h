// Generation: one request's life from its submission to its last byte. Belongs to
// the stream thread, but for note_disconnected().
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "src/base/clock.h"
#include "src/http/response_writer.h"
#include "src/server/engine_port.h"
#include "src/server/metrics.h"
#include "src/server/open_requests.h"
#include "src/server/prepare.h"
#include "src/server/reply.h"
#include "src/server/request_log.h"
#include "src/server/token_queue.h"

namespace llm_dist::server {

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  struct Parts {
    EnginePort* engine = nullptr;
    Metrics* metrics = nullptr;
    const ServedModel* model = nullptr;
    std::shared_ptr<TokenQueue> queue;
    std::shared_ptr<http::ResponseWriter> writer;
    OpenRequests::Ticket ticket;
    TimePoint arrival;
    std::string request_id;
    double timeout_seconds = 0;  // 0: none
    ReplyHead head;
    PreparedRequest request;
  };

  explicit Generation(Parts parts);

  // Submits every choice. An engine that refuses one ends the request.
  void begin();
  // One token, or the end, of one choice.
  void take(const TokenRecord& record);
  // The client is gone.
  void abandon(const char* why = "client_closed_request");
  // Ends with an error: as a response when nothing has been sent, else as an event of the stream.
  void fail(const ApiError& error);
  // The same, after something here threw: whatever state that left.
  void fail(const std::exception& failure);
  // Ends without a word, where even that threw: the client gets a 500, or sees its stream cut.
  void drop() noexcept { release(); }
  // Once in a while: a client that left, a deadline that passed.
  void check();
  bool done() const { return done_; }

  // Any thread.
  void note_disconnected() { disconnected_ = true; }

 private:
  struct Track {
    Choice choice;
    size_t prompt;
    sched::SequenceId id = 0;  // 0: not submitted
    bool ended = false;        // the engine knows that it has ended
    TimePoint first_token;
    TimePoint last_token;
    Delta whole;              // of a reply that is not streamed
    double sum_logprobs = 0;  // of its tokens, where the engine was asked for them
  };

  sched::SequenceRequest sequence_request(const Track& track, uint32_t choice) const;
  int32_t num_prompt_logprobs(uint32_t choice) const;
  void take_score(Track& track, const TokenRecord& record);
  void observe(Track& track, const TokenRecord& record);
  bool open_stream();
  void send_delta(size_t index, Delta delta);
  void finish_choice(Track& track);
  std::vector<size_t> replied_tracks() const;
  void finish();
  std::string render_whole();
  void cancel_rest(std::string_view reason);
  void release() noexcept;
  bool write(const std::string& json);
  Usage usage() const;
  RequestTag tag() const;
  void log_end() const;

  Parts parts_;
  std::vector<Track> tracks_;                 // of prompt i: [i · num_sequences, (i + 1) · num_sequences)
  std::vector<std::string> prompt_logprobs_;  // of each prompt, if asked for: see append_prompt_logprob()
  size_t num_open_ = 0;
  bool streaming_ = false;  // the head of a stream is out
  bool done_ = false;
  std::atomic<bool> disconnected_{false};
};

}  // namespace llm_dist::server
