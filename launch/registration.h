// A replica that a coordinator has started tells it where it serves.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace llm_dist::launch {

// Posts until the coordinator has taken it, or says that it never will; a coordinator may be away for a
// while.
class Registration {
 public:
  // `certificate_file`: the certificate that the coordinator shows; empty: one that the system trusts.
  Registration(std::string url, std::string body, std::string certificate_file);
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

 private:
  void run();
  // True: answered for good.
  bool post();
  void tell(int kind, const std::string& what);

  const std::string url_;
  const std::string body_;
  const std::string certificate_file_;
  int told_ = 0;  // the kind of the last failure: an HTTP status, or a StatusCode
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

// `endpoint` is asked only then. By the variables LLM_DIST_REGISTER_URL, _AS ("job-7 2"), _SECRET and, with
// TLS, _CA; null when no coordinator set them.
std::unique_ptr<Registration> register_with_coordinator(const std::function<std::string()>& endpoint);

}  // namespace llm_dist::launch
