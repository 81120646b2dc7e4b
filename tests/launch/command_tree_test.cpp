// The walk over the parser, and what the writers make of it.
#include "launch/command_tree.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "launch/completion.h"
#include "launch/man_page.h"

namespace llm_dist::launch {
namespace {

struct Values {
  std::string text, model;
  int number = 7;
  bool on = true;
  std::vector<std::string> names;
};

// A program with one of each: an option group, a choice, a switch with its contrary, a command below a
// command, a hidden one.
class CommandTreeTest : public testing::Test {
 protected:
  CommandTreeTest() {
    program_.name("llm-dist");
    program_.footer("Examples:\n  llm-dist serve x");
    CLI::App* serve = program_.add_subcommand("serve", "Serve [a] model: don't stop");
    serve->add_option("model,--model", values_.model, "Which one")->required();
    serve->add_option("--device", values_.text, "Where")->check(CLI::IsMember({"cpu", "cuda"}));
    serve->add_option("--secret", values_.text, "Not shown")->group("");
    CLI::Option_group* group = serve->add_option_group("Scheduler");
    group->add_option("--max-num-seqs,--seqs", values_.number, "How many")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    group->add_flag("--chunks,!--no-chunks", values_.on, "In pieces");
    group->add_option("--served-model-name", values_.names, "Names");
    serve->footer("Example: llm-dist serve 'a b' …\n.hidden");
    CLI::App* bench = program_.add_subcommand("bench", "Measure");
    bench->add_subcommand("latency", "One by one");
    program_.add_subcommand("keep", "Hidden")->group("");
    tree_ = describe(program_);
  }

  const CommandEntry& serve() const { return tree_.commands.at(0); }
  const CommandEntry& bench() const { return tree_.commands.at(1); }

  Values values_;
  CLI::App program_;
  CommandEntry tree_;
};

TEST_F(CommandTreeTest, HiddenCommandsAndOptionsAreLeftOut) {
  ASSERT_EQ(tree_.commands.size(), 2u);
  EXPECT_EQ(bench().commands.at(0).path, (std::vector<std::string>{"llm-dist", "bench", "latency"}));
  for (const std::string& text : {bash_completion(tree_),
                                  zsh_completion(tree_),
                                  fish_completion(tree_),
                                  man_page(tree_, tree_, "1"),
                                  man_page(tree_, serve(), "1")}) {
    EXPECT_EQ(text.find("keep"), std::string::npos);
    EXPECT_EQ(text.find("secret"), std::string::npos);
  }
}

TEST_F(CommandTreeTest, FlagsComeByGroupWithTheirValues) {
  ASSERT_EQ(serve().groups.size(), 2u);
  const FlagGroup& own = serve().groups[0];
  EXPECT_EQ(own.title, "");
  ASSERT_EQ(own.flags.size(), 3u);  // --help, --model, --device
  EXPECT_EQ(own.flags[0].names, (std::vector<std::string>{"-h", "--help"}));
  EXPECT_EQ(own.flags[0].kind, ValueKind::kNone);
  EXPECT_EQ(own.flags[2].kind, ValueKind::kChoice);
  EXPECT_EQ(own.flags[2].choices, (std::vector<std::string>{"cpu", "cuda"}));
  const FlagGroup& scheduler = serve().groups[1];
  EXPECT_EQ(scheduler.title, "Scheduler");
  EXPECT_EQ(scheduler.flags.at(0).kind, ValueKind::kNumber);
  EXPECT_EQ(scheduler.flags.at(0).value_name, "INT");
  EXPECT_EQ(scheduler.flags.at(0).default_value, "7");
  EXPECT_EQ(scheduler.flags.at(1).names, (std::vector<std::string>{"--chunks", "--no-chunks"}));
  EXPECT_EQ(scheduler.flags.at(1).kind, ValueKind::kNone);
  EXPECT_TRUE(scheduler.flags.at(2).repeats);
}

TEST_F(CommandTreeTest, AnArgumentMayBeAFlagToo) {
  ASSERT_EQ(serve().arguments.size(), 1u);
  EXPECT_EQ(serve().arguments[0].names, std::vector<std::string>{"model"});
  EXPECT_TRUE(serve().arguments[0].required);
  EXPECT_EQ(serve().groups[0].flags[1].names, std::vector<std::string>{"--model"});
}

TEST_F(CommandTreeTest, AFooterOfTheCommandAboveIsNotItsOwn) {
  EXPECT_NE(serve().footer, "");
  EXPECT_EQ(bench().footer, "");
}

TEST_F(CommandTreeTest, RoffKeepsWhatItWouldTakeForItsOwn) {
  std::string page = man_page(tree_, serve(), "1.2.3");
  EXPECT_EQ(page.rfind(".TH LLM-DIST-SERVE 1 \"\" \"llm-dist 1.2.3\"", 0), 0u);
  EXPECT_NE(page.find("\n\\&.hidden\n"), std::string::npos);
  EXPECT_NE(page.find("llm\\-dist serve \\(aqa b\\(aq \\[u2026]\n"), std::string::npos);
  EXPECT_NE(
      page.find(
          ".SS Scheduler\n.TP\n\\fB\\-\\-max\\-num\\-seqs\\fR, \\fB\\-\\-seqs\\fR \\fIINT\\fR\nHow many.\n"
          "Default: 7.\n"),
      std::string::npos);
  for (char letter : page) EXPECT_GE(letter, 0) << "a byte that is not ASCII";
}

TEST_F(CommandTreeTest, APageNamesItsNeighbours) {
  std::string page = man_page(tree_, bench(), "1");
  std::string see_also = page.substr(page.find("SEE ALSO"));
  EXPECT_NE(see_also.find("\\fBllm\\-dist\\fR(1)"), std::string::npos);
  EXPECT_NE(see_also.find("\\fBllm\\-dist\\-serve\\fR(1)"), std::string::npos);
  EXPECT_NE(see_also.find("\\fBllm\\-dist\\-bench\\-latency\\fR(1)"), std::string::npos);
  EXPECT_EQ(see_also.find("\\fBllm\\-dist\\-bench\\fR(1)"), std::string::npos);
}

TEST_F(CommandTreeTest, HelpTextsAreQuotedForTheirShell) {
  EXPECT_NE(zsh_completion(tree_).find("'serve:Serve \\[a\\] model\\: don'\\''t stop'"), std::string::npos);
  EXPECT_NE(fish_completion(tree_).find("-a serve -d 'Serve [a] model: don\\'t stop'"), std::string::npos);
}

}  // namespace
}  // namespace llm_dist::launch
