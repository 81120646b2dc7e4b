// A chat template, and behind lines "====" the messages and the further variables: what it renders is text
// within the budget, and the same each time.
#include "src/text/chat_template.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace llm_dist;
  constexpr size_t kMaxOutputBytes = size_t{64} << 20;
  constexpr std::string_view kMessages = R"([{"role": "user", "content": "hello"}])";
  auto pieces = fuzz::pieces_of(fuzz::text_of(data, size), 3);
  auto made = text::ChatTemplate::create(pieces[0], "<s>", "</s>");
  if (!made.ok()) {
    fuzz::expect_message(made.status());
    return 0;
  }
  std::string_view messages = pieces[1].empty() ? kMessages : pieces[1];
  // So long that none outlasts it on a busy machine: what it left behind would count as a leak.
  text::ChatTemplateOptions options{
      .kwargs_json = pieces[2], .now_unix_s = 1'700'000'000, .timeout = std::chrono::minutes(5)};
  auto text = made->render(messages, options);
  auto again = made->render(messages, options);
  if (!text.ok()) {
    CHECK(!text.status().message().empty());
    CHECK(fuzz::is_utf8(text.status().message()));
    return 0;
  }
  CHECK(fuzz::is_utf8(*text) && text->size() <= kMaxOutputBytes, "{} bytes", text->size());
  if (again.ok()) CHECK_EQ(*again, *text);
  return 0;
}
