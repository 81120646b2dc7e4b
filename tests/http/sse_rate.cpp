// Prints how many server-sent events a second one I/O thread carries: `http_sse_rate [streams] [events]
// [lockstep]`. One producer thread deals events of ~150 bytes round-robin to the streams, as a detokenizer
// does; each stream is read by a thread of this process, so on few cores the figure includes the clients'
// cost. With "lockstep", each round of one event a stream starts when the round before has arrived, so that
// nothing is coalesced: every event is a socket write of its own, the worst case.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "src/http/client.h"
#include "src/http/server.h"
#include "src/http/sse.h"

int main(int argc, char** argv) {
  using namespace llm_dist;
  using namespace llm_dist::http;
  const int num_streams = argc > 1 ? std::atoi(argv[1]) : 16;
  const int num_events = argc > 2 ? std::atoi(argv[2]) : 500000;
  const bool lockstep = argc > 3 && std::string_view(argv[3]) == "lockstep";
  std::mutex mutex;
  std::vector<std::shared_ptr<ResponseWriter>> writers;
  auto server = Server::create({}, [&](const Request&, std::shared_ptr<ResponseWriter> writer) {
    writer->start_stream(200, sse_headers());
    std::lock_guard lock(mutex);
    writers.push_back(std::move(writer));
  });
  if (!server.ok()) return std::fprintf(stderr, "%s\n", server.status().to_string().c_str()), 1;
  std::atomic<int64_t> received = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < num_streams; ++i)
    clients.emplace_back([&] {
      (void)Client().stream_events(
          {.url = (*server)->url()}, Deadline::after_seconds(120), [&](const SseEvent&) {
            ++received;
            return true;
          });
    });
  auto connected = [&] {
    std::lock_guard lock(mutex);
    return static_cast<int>(writers.size()) == num_streams;
  };
  while (!connected()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::string event = sse_event(std::string(140, 'x'));
  const TimePoint begin = Clock::now();
  for (int i = 0; i < num_events; ++i) {
    writers[static_cast<size_t>(i % num_streams)]->write(event);
    const bool round_ends = (i + 1) % num_streams == 0;
    while (lockstep && round_ends && received <= i) std::this_thread::yield();
    // A model gives the I/O thread time between steps; without any the queues only hit their cap.
    if (!lockstep && i % (num_streams * 100) == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  for (auto& writer : writers) writer->end();
  for (auto& client : clients) client.join();
  const double seconds = seconds_between(begin, Clock::now());
  std::printf("%d streams, %lld of %d events received in %.2f s: %.0f events/s\n",
              num_streams,
              static_cast<long long>(received.load()),
              num_events,
              seconds,
              static_cast<double>(received.load()) / seconds);
  return received == num_events ? 0 : 1;
}
