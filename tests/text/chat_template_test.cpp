#include "src/text/chat_template.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "src/base/clock.h"
#include "tests/text/vocabularies.h"

namespace llm_dist::text {
namespace {

constexpr std::string_view kHello = R"([{"role":"user","content":"Hi"}])";

ChatTemplate make(std::string_view jinja) {
  auto chat_template = ChatTemplate::create(jinja, "<s>", "</s>");
  EXPECT_TRUE(chat_template.ok()) << chat_template.status().to_string();
  return std::move(chat_template).value();
}

std::string render(std::string_view jinja,
                   std::string_view messages = kHello,
                   const ChatTemplateOptions& options = {}) {
  const auto text = make(jinja).render(messages, options);
  EXPECT_TRUE(text.ok()) << text.status().to_string();
  return text.ok() ? *text : std::string();
}

// For templates that reach another bound than time, however slow the machine.
constexpr ChatTemplateOptions kPatient{.timeout = std::chrono::minutes(2)};

std::string error_of(std::string_view jinja,
                     std::string_view messages = kHello,
                     const ChatTemplateOptions& options = kPatient) {
  const auto text = make(jinja).render(messages, options);
  EXPECT_FALSE(text.ok());
  EXPECT_EQ(text.status().code(), StatusCode::kInvalidArgument) << text.status().to_string();
  return text.status().message();
}

TEST(ChatTemplate, Smollm2) {
  const auto spec = smollm2_vocabulary();
  if (!spec) GTEST_SKIP() << "needs .models/SmolLM2-135M-Instruct.Q4_1.gguf";
  EXPECT_EQ(
      render(spec->chat_template),
      "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(render(spec->chat_template,
                   R"([{"role":"system","content":"S"},{"role":"user","content":"U"}])",
                   {.add_generation_prompt = false}),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n");
}

TEST(ChatTemplate, BlocksAreTrimmedLikePythons) {
  EXPECT_EQ(
      render("{{ bos_token }}\n  {% for m in messages %}\n{{ m.content }}\n  {% endfor %}\n{{ eos_token }}"),
      "<s>\nHi\n</s>");
}

TEST(ChatTemplate, PythonMethodsSlicesAndNamespaces) {
  EXPECT_EQ(
      render("{% set ns = namespace(n=0) %}{% for m in messages[1:] %}{% set ns.n = ns.n + 1 %}{% endfor %}"
             "{{ ns.n }}{{ ' x '.strip() }}{{ 'a-b'.split('-')[1] }}{{ messages[0].get('none', 'd') }}"
             "{% for k, v in messages[0].items() %}|{{ k }}={{ v }}{% endfor %}",
             R"([{"role":"a","content":"1"},{"role":"b","content":"2"}])"),
      "1xbd|role=a|content=1");
}

TEST(ChatTemplate, LoopControlsAndGenerationTags) {
  EXPECT_EQ(render("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}"
                   "{% endif %}{{ i }}{% endfor %}{%- generation -%} g {%- endgeneration %}"),
            "02g");
}

TEST(ChatTemplate, ConstantsPrintLikePython) {
  EXPECT_EQ(render("{{ true }} {{ false }} {{ none }} {{ missing }}|"), "True False None |");
}

TEST(ChatTemplate, ToolsAsPythonJson) {
  const ChatTemplateOptions options{.tools_json =
                                        R"([{"z":1,"a":{"t":"<é>","e":[],"l":[1,2.5,null,true]}}])"};
  EXPECT_EQ(render("{{ tools | tojson }}", kHello, options),
            R"([{"z": 1, "a": {"t": "<é>", "e": [], "l": [1, 2.5, null, true]}}])");
  EXPECT_EQ(render("{{ tools[0].a.l | tojson(indent=2) }}", kHello, options),
            "[\n  1,\n  2.5,\n  null,\n  true\n]");
  EXPECT_EQ(
      render(
          "{{ tools | tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}", kHello, options),
      R"([{"a":{"e":[],"l":[1,2.5,null,true],"t":"<\u00e9>"},"z":1}])");
  EXPECT_EQ(render("{{ {} | tojson(indent=4) }}{{ [[], {}] | tojson(indent=1) }}"), "{}[\n [],\n {}\n]");
  EXPECT_EQ(render("{% if tools %}yes{% else %}no{% endif %}"), "no");
}

TEST(ChatTemplate, KwargsAreVariablesButNotTheReservedOnes) {
  EXPECT_EQ(render("{{ thinking }}", kHello, {.kwargs_json = R"({"thinking":"deep"})"}), "deep");
  EXPECT_NE(error_of("", kHello, {.kwargs_json = R"({"messages":[]})"}).find("'messages'"),
            std::string::npos);
}

TEST(ChatTemplate, ContentPartsArriveAsTheyAre) {
  EXPECT_EQ(render("{% for p in messages[0].content %}{{ p.type }}:{{ p.text }}{% endfor %}",
                   R"([{"role":"user","content":[{"type":"text","text":"T"}]}])"),
            "text:T");
}

TEST(ChatTemplate, ContinuesTheFinalMessage) {
  constexpr std::string_view kJinja =
      "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}<end>{% endfor %}";
  constexpr std::string_view kMessages =
      R"([{"role":"user","content":"Say"},{"role":"assistant","content":" Once upon "}])";
  const ChatTemplateOptions options{.add_generation_prompt = false, .continue_final_message = true};
  EXPECT_EQ(render(kJinja, kMessages, options), "[user]Say<end>[assistant]Once upon");
  EXPECT_EQ(render("{% for m in messages %}{{ m.content }}<end>{% endfor %}", kMessages, options),
            "Say<end> Once upon ");
  // A text may stand in the template's own end marker too, or be there already.
  constexpr std::string_view kMarked =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
  constexpr std::string_view kTrimmed =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>\n{% endfor %}";
  for (const std::string text : {"<", "|", "e", "end", "", " ", "im_start", "CONTINUED-HERE-0"}) {
    const std::string messages =
        R"([{"role":"user","content":"Q"},{"role":"assistant","content":")" + text + R"("}])";
    const std::string front = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n";
    EXPECT_EQ(render(kMarked, messages, options), front + text);
    const std::string trimmed_front = "<|im_start|>user\n\nQ<|im_end|>\n<|im_start|>assistant\n\n";
    EXPECT_EQ(render(kTrimmed, messages, options), trimmed_front + (text == " " ? "" : text));
  }
  EXPECT_EQ(render("{% for m in messages %}{{ m.content[0].text }};{% endfor %}",
                   R"([{"role":"user","content":[{"type":"text","text":"a;"}]}])",
                   options),
            "a;");
  EXPECT_NE(error_of("constant", kMessages, options).find("continue_final_message"), std::string::npos);
  EXPECT_NE(error_of(kJinja, "[]", options).find("no text content"), std::string::npos);
  EXPECT_NE(error_of(kJinja, kMessages, {.continue_final_message = true}).find("exclude"), std::string::npos);
}

TEST(ChatTemplate, StrftimeNow) {
  // Noon UTC: the same date in every zone from -11 to +11.
  EXPECT_EQ(render("{{ strftime_now('%d %b %Y') }}", kHello, {.now_unix_s = 1721995200}), "26 Jul 2024");
  EXPECT_EQ(render("{{ strftime_now('') }}"), "");
}

TEST(ChatTemplate, RefusalCarriesTheTemplatesOwnText) {
  EXPECT_EQ(error_of("{{ raise_exception('roles must alternate') }}"),
            "the chat template refused: roles must alternate");
  EXPECT_EQ(error_of("{% macro f() %}{{ raise_exception('from a macro') }}{% endmacro %}{{ f() }}"),
            "the chat template refused: from a macro");
}

TEST(ChatTemplate, BadInputIsNamed) {
  const auto broken = ChatTemplate::create("line\n{% for %}", "", "");
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.status().message().find("chat:2"), std::string::npos) << broken.status().message();
  EXPECT_FALSE(ChatTemplate::create("\xFF", "", "").ok());
  EXPECT_NE(error_of("", "{").find("messages is not valid JSON"), std::string::npos);
  EXPECT_NE(error_of("", "{}").find("array"), std::string::npos);
  EXPECT_NE(error_of("", "").find("array"), std::string::npos);
  EXPECT_NE(error_of("", "[\"\xFF\"]").find("not valid JSON"), std::string::npos);
  EXPECT_NE(error_of("", std::string(10000, '[')).find("not valid JSON"), std::string::npos);
  EXPECT_NE(error_of("", kHello, {.tools_json = "{}"}).find("tools"), std::string::npos);
  EXPECT_NE(error_of("", kHello, {.kwargs_json = "[]"}).find("chat_template_kwargs"), std::string::npos);
  EXPECT_NE(error_of("{{ messages[0].x.y }}").find("chat:1"), std::string::npos);
}

TEST(ChatTemplate, HostileTemplatesAreStopped) {
  EXPECT_NE(error_of("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
                .find("steps"),
            std::string::npos);
  EXPECT_NE(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("recursion"), std::string::npos);
  EXPECT_NE(
      error_of("{% set x = 'x' * 1000000 %}{% for i in range(99999) %}{{ x }}{% endfor %}").find("output"),
      std::string::npos);
  EXPECT_FALSE(ChatTemplate::create(std::string(100000, '(') + "{{" + std::string(100000, '('), "", "").ok());
}

// Three of the four renders that may stand still in a process.
TEST(ChatTemplateMemory, IsBounded) {
  for (const char* hostile :
       {"{{ 'x' | indent(99999999999999) }}",
        "{% set ns = namespace(t='ab') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
        "{% set ns = namespace(v=['a' * 1000000]) %}{% for i in range(1000) %}"
        "{% set ns.v = ns.v + [ns.v | join ~ 'b'] %}{% endfor %}"}) {
    EXPECT_NE(error_of(hostile).find("256 MiB of memory"), std::string::npos) << hostile;
    EXPECT_EQ(make("{{ messages[0].content }}").render(kHello, kPatient).value(), "Hi") << "others go on";
  }
  // What is given back counts no more.
  const auto text =
      make("{% for i in range(400) %}{% set x = 'x' * 1000000 %}{% endfor %}done").render(kHello, kPatient);
  EXPECT_EQ(text.value(), "done");
}

std::string repeated(std::string_view item, size_t count) {
  std::string list;
  for (size_t i = 0; i < count; ++i) list += (i == 0 ? "" : ",") + std::string(item);
  return "[" + list + "]";
}

TEST(ChatTemplateMemory, ARequestsJsonAloneDoesNotUseItUp) {
  const std::string kwargs = R"({"a":)" + repeated("[]", 2'000'000) + "}";
  EXPECT_EQ(
      error_of("{{ messages[0].content }}", kHello, {.kwargs_json = kwargs}),
      "too many JSON values: 3 in messages, 0 in tools, 2000001 in chat_template_kwargs; a request may have "
      "200000 together");
  EXPECT_NE(error_of("", repeated(R"({"role":"user","content":""})", 500'000)).find("1500000 in messages"),
            std::string::npos);
  EXPECT_NE(error_of("", kHello, {.tools_json = repeated("{}", 500'000)}).find("500000 in tools"),
            std::string::npos);
  // Of the bytes that a server takes a template may make as many values.
  const std::string spaces = R"([{"role":"user","content":")" + std::string(1 << 20, ' ') + "\"}]";
  EXPECT_EQ(render("{{ messages[0].content.split(' ') | length }}", spaces, kPatient), "1048577");
}

TEST(ChatTemplateMemory, HoldsAsManyJsonValuesAsARequestMayHave) {
  // kHello has three, the array is one.
  const auto with = [](size_t count) { return R"({"a":)" + repeated("null", count) + "}"; };
  const ChatTemplate count = make("{{ a | length }}");
  const std::string most = with(199'996);
  EXPECT_EQ(count.render(kHello, {.kwargs_json = most, .timeout = kPatient.timeout}).value(), "199996");
  const std::string more = with(199'997);
  EXPECT_FALSE(count.render(kHello, {.kwargs_json = more, .timeout = kPatient.timeout}).ok());
  // Nothing costs more than an object of one object; the template prints them all.
  std::string nested = "{}";
  for (int depth = 0; depth < 99; ++depth) nested = R"({"a key that is kept elsewhere":)" + nested + "}";
  const std::string dear = R"({"a":)" + repeated(nested, 1990) + "}";
  const auto printed =
      make("{{ a | tojson | length }}").render(kHello, {.kwargs_json = dear, .timeout = kPatient.timeout});
  EXPECT_TRUE(printed.ok()) << printed.status().to_string();
}

TEST(ChatTemplateMemory, TellsWhenNothingIsRenderedAnyMore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // In a process of its own: nothing undoes it.
  EXPECT_EXIT(
      {
        const ChatTemplate harmless = make("{{ messages[0].content }}");
        for (int i = 0; i < 4; ++i) {
          EXPECT_TRUE(ChatTemplate::can_render());
          EXPECT_NE(error_of("{{ 'x' | indent(99999999999999) }}").find("256 MiB"), std::string::npos);
        }
        EXPECT_FALSE(ChatTemplate::can_render());
        EXPECT_EQ(harmless.render(kHello).status().code(), StatusCode::kUnavailable);
        std::fflush(stdout);
        std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0),
      "");
}

TEST(ChatTemplate, DeepValuesDoNotOverflowTheStack) {
  // About as deep as the instructions reach: the first renders, the second is stopped on the way.
  const auto nested = [](int hundreds, std::string_view use) {
    return make("{% set ns = namespace(v=[]) %}{% for i in range(" + std::to_string(hundreds) +
                ") %}{% for j in range(100) %}{% set ns.v = [ns.v] %}{% endfor %}{% endfor %}" +
                std::string(use))
        .render(kHello, {.timeout = std::chrono::milliseconds(60000)});
  };
  for (const char* use : {"",
                          "{{ ns.v | string | length }}",
                          "{{ ns.v | tojson | length }}",
                          "{{ ns.v == [ns.v] }}",
                          "{{ {ns.v: 1} | length }}",
                          "{{ [ns.v, ns.v] | sort | length }}"}) {
    const auto text = nested(1800, use);
    EXPECT_TRUE(text.ok()) << text.status().to_string();
  }
  EXPECT_FALSE(nested(90000, "").ok());
}

// Some tenths of a second's work, of which nobody awaits more than the first.
Status status_of_a_slow_one() {
  return make(
             "{% set x = 'ab' * 500000 %}{% for i in range(200) %}{% set y = x | upper | lower %}"
             "{% endfor %}")
      .render(kHello, {.timeout = std::chrono::milliseconds(20)})
      .status();
}

TEST(ChatTemplate, ASlowTemplateIsGivenUp) {
  const Status status = status_of_a_slow_one();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("20 ms"), std::string::npos) << status.message();
}

TEST(ChatTemplate, WhileManyThatWereGivenUpRunNothingElseIsRendered) {
  const ChatTemplate harmless = make("{{ messages[0].content }}");
  const auto code = [&] { return harmless.render(kHello, kPatient).status().code(); };
  EXPECT_EQ(code(), StatusCode::kOk);
  while (status_of_a_slow_one().code() == StatusCode::kDeadlineExceeded) {
  }
  EXPECT_EQ(status_of_a_slow_one().code(), StatusCode::kUnavailable);
  EXPECT_EQ(code(), StatusCode::kUnavailable);
  EXPECT_TRUE(ChatTemplate::can_render()) << "they end by themselves";
  for (const Deadline limit = Deadline::after_seconds(120); code() != StatusCode::kOk;) {
    ASSERT_FALSE(limit.expired());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST(ChatTemplate, ManyThreadsRenderAtOnce) {
  const ChatTemplate chat_template = make("{% for m in messages %}{{ m.content }}{% endfor %}");
  std::vector<std::thread> threads;
  std::vector<int> agreed(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        const auto text = chat_template.render(kHello);
        if (text.ok() && *text == "Hi") ++agreed[t];
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(agreed, (std::vector<int>(4, 25)));
}

}  // namespace
}  // namespace llm_dist::text
