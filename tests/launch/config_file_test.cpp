// Flags from files and flags whose value is empty, in a small program of the same shape as llm-dist.
#include "launch/config_file.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <fstream>

#include "launch/empty_values.h"

namespace llm_dist::launch {
namespace {

struct Values {
  std::string model, config, endpoint = "none", keys = "none";
  std::vector<std::string> names;
  std::vector<int> split;
  int port = 8000, length = 0, rate = 0;
  double share = 0;
  bool json = false, ahead = true;
};

struct Program {
  Program() {
    app.name("llm-dist");
    app.require_subcommand(1);
    add_engine(*app.add_subcommand("serve"));
    app.get_subcommand("serve")->add_option("--port", values.port);
    app.get_subcommand("serve")->add_option("--endpoint-file", values.endpoint);
    app.get_subcommand("serve")->add_option("--api-key-file", values.keys);
    add_engine(*app.add_subcommand("plan"));
    CLI::App* bench = app.add_subcommand("bench");
    bench->require_subcommand(1);
    add_engine(*bench->add_subcommand("latency"));
    bench->get_subcommand("latency")->add_option("--input-len", values.length);
    add_engine(*bench->add_subcommand("load"));
    bench->get_subcommand("load")->add_option("--request-rate", values.rate);
  }

  void add_engine(CLI::App& command) {
    command.add_option("model", values.model)->required();
    command.add_option("--config", values.config)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    CLI::Option_group* group = command.add_option_group("Engine");
    group->add_option("--served-model-name", values.names);
    group->add_option("--split,--layer-split", values.split)->delimiter(',')->allow_extra_args(false);
    group->add_option("--share", values.share);
    group->add_flag("--json", values.json);
    group->add_flag("--ahead,!--no-ahead", values.ahead);
  }

  // What is wrong, or "".
  std::string parse(std::vector<std::string> words) {
    words = with_empty_values(app, words);
    auto all = with_config_file(app, words);
    if (!all.ok()) return all.status().message();
    try {
      app.parse(std::vector<std::string>(all->rbegin(), all->rend()));
      refuse_empty_values(app, *all);
    } catch (const CLI::ParseError& error) {
      return error.what();
    }
    return "";
  }

  Values values;
  CLI::App app;
};

class ConfigFileTest : public testing::Test {
 protected:
  // Parses "COMMAND --config FILE" with this text in the file; FILE is "f" in what is returned.
  std::string parse(const std::string& text,
                    std::vector<std::string> words,
                    const std::string& name = "toml") {
    std::string path = testing::TempDir() + "config_file_test." + name;
    std::ofstream(path, std::ios::binary) << text;
    words.push_back("--config=" + path);
    program_ = std::make_unique<Program>();
    std::string said = program_->parse(words);
    size_t at = said.find(path);
    return at == said.npos ? said : said.replace(at, path.size(), "f");
  }

  const Values& values() const { return program_->values; }

  std::unique_ptr<Program> program_;
};

using Words = std::vector<std::string>;

TEST_F(ConfigFileTest, AHashInQuotesIsNoComment) {
  EXPECT_EQ(parse("model = \"a#b\"  # a comment\n"
                  "served-model-name = [\"llama#8b\", 'llama']\n"
                  "port = 8101\napi-key-file = \"keys\"\n",
                  {"serve"}),
            "");
  EXPECT_EQ(values().model, "a#b");
  EXPECT_EQ(values().names, (Words{"llama#8b", "llama"}));
  EXPECT_EQ(values().port, 8101);
  EXPECT_EQ(values().keys, "keys");
}

TEST_F(ConfigFileTest, AListMayHaveSeveralLinesAndTakesNoModelBehindIt) {
  EXPECT_EQ(
      parse("served-model-name = [\n  \"a\",  # one\n  \"b\",\n]\nsplit = [20, 10]\nmodel = 'm'\n", {"plan"}),
      "");
  EXPECT_EQ(values().names, (Words{"a", "b"}));
  EXPECT_EQ(values().split, (std::vector<int>{20, 10}));
  EXPECT_EQ(values().model, "m");
}

TEST_F(ConfigFileTest, ValuesOfEachKind) {
  EXPECT_EQ(
      parse("model = '''C:\\m'''\nport = 0x1F_90\nshare = 9e-1\njson = true\nno_ahead = true\n", {"serve"}),
      "");
  EXPECT_EQ(values().model, "C:\\m");
  EXPECT_EQ(values().port, 8080);
  EXPECT_EQ(values().share, 0.9);
  EXPECT_TRUE(values().json);
  EXPECT_FALSE(values().ahead);
  EXPECT_EQ(parse("json = false\nahead = false\nshare = 1.0\nserved-model-name = []\n", {"plan", "m"}), "");
  EXPECT_FALSE(values().json);
  EXPECT_FALSE(values().ahead);
  EXPECT_EQ(values().share, 1.0);
  EXPECT_TRUE(values().names.empty());
  EXPECT_NE(parse("port = 8000.0\n", {"serve", "m"}), "");
}

TEST_F(ConfigFileTest, AnEmptyValueIsThatValue) {
  EXPECT_EQ(parse("endpoint-file = \"\"\nserved-model-name = [\"\", \"x\"]\n", {"serve", "m"}), "");
  EXPECT_EQ(values().endpoint, "");
  EXPECT_EQ(values().names, (Words{"", "x"}));
  EXPECT_EQ(values().model, "m");
  for (const char* key : {"port", "share", "split", "json", "api-key-file"})
    EXPECT_EQ(parse(std::string(key) + " = \"\"\n", {"serve", "m"}),
              "--" + std::string(key) + ": its value is empty");
}

TEST_F(ConfigFileTest, OtherKindsOfValuesAreRefusedByNameAndLine) {
  EXPECT_EQ(parse("\nport = 1979-05-27\n", {"serve", "m"}), "--config f:2: port: a date is no flag's value");
  EXPECT_EQ(parse("port = 07:32:00\n", {"serve", "m"}),
            "--config f:1: port: a time of day is no flag's value");
  EXPECT_EQ(parse("port = 1979-05-27T07:32:00Z\n", {"serve", "m"}),
            "--config f:1: port: a date with a time is no flag's value");
  EXPECT_EQ(parse("serve = {port = 1}\n", {"serve", "m"}),
            "--config f:1: serve: an inline table is no flag's value");
  EXPECT_EQ(parse("[serve]\nsplit = [[1]]\n", {"plan", "m"}),
            "--config f:2: split: a list in a list is no flag's value");
  EXPECT_EQ(parse("[[serve]]\nport = 1\n", {"serve", "m"}),
            "--config f:1: [[serve]] would be a list of sections");
  EXPECT_EQ(parse("\"\" = 1\n", {"serve", "m"}), "--config f:1: a key is empty");
}

TEST_F(ConfigFileTest, WhatIsNoTomlIsToldWithItsLine) {
  for (const char* text : {"port = 1\n[serve\nshare = 1\n",
                           "port = 1\nmodel = none\n",
                           "port = 1\nport = 2\n",
                           "port = 1\n\x7f"
                           "ELF\x01\xff\n",
                           "port = 1\nsplit = 99999999999999999999\n"}) {
    std::string said = parse(text, {"serve", "m"});
    EXPECT_EQ(said.rfind("--config f:2: ", 0), 0u) << said;
    EXPECT_GT(said.size(), 30u) << said;
  }
}

TEST_F(ConfigFileTest, ASectionCountsForItsCommandAndThoseBelowIt) {
  const std::string text =
      "[bench]\nmodel = 'b'\nrequest-rate = 7\ninput-len = 5\n[bench.latency]\nshare = 0.5\n";
  EXPECT_EQ(parse(text, {"bench", "latency"}), "");
  EXPECT_EQ(values().model, "b");
  EXPECT_EQ(values().length, 5);
  EXPECT_EQ(values().rate, 0);
  EXPECT_EQ(values().share, 0.5);
  EXPECT_EQ(parse(text, {"bench", "load"}), "");
  EXPECT_EQ(values().rate, 7);
  EXPECT_EQ(values().share, 0);
  EXPECT_EQ(parse(text, {"serve", "m"}), "");
  EXPECT_EQ(values().model, "m");
  EXPECT_EQ(parse("[latency]\ninput-len = 6\n", {"bench", "latency", "m"}), "");
  EXPECT_EQ(values().length, 6);
  EXPECT_EQ(parse("bench.input-len = 8\n", {"bench", "latency", "m"}), "");
  EXPECT_EQ(values().length, 8);
}

TEST_F(ConfigFileTest, AMistakeIsFoundInAnySection) {
  EXPECT_EQ(parse("[bench]\ninput-lne = 5\n", {"bench", "latency", "m"}),
            "--config f:2: input-lne is no flag of any bench command; the nearest is input-len");
  EXPECT_EQ(parse("[bench]\ninput-lne = 5\n", {"serve", "m"}),
            "--config f:2: input-lne is no flag of any bench command; the nearest is input-len");
  EXPECT_EQ(parse("[bench.latency]\nrequest-rate = 5\n", {"bench", "load", "m"}),
            "--config f:2: request-rate is no flag of bench latency");
  EXPECT_EQ(parse("[serve]\nprot = 5\n", {"plan", "m"}),
            "--config f:2: prot is no flag of serve; the nearest is port");
  EXPECT_EQ(parse("port = 5\n", {"plan", "m"}), "--config f:1: port is no flag of plan");
  EXPECT_EQ(parse("\n[plna]\n", {"plan", "m"}), "--config f:2: plna is no command; the nearest is plan");
  EXPECT_EQ(parse("[bench.latncy]\n", {"plan", "m"}),
            "--config f:1: bench.latncy is no command; the nearest is bench.latency");
  EXPECT_EQ(parse("[plan.latency]\n", {"plan", "m"}), "--config f:1: plan.latency is no command");
  EXPECT_EQ(parse("split = [1]\n[plan]\nlayer-split = [2]\n", {"plan", "m"}),
            "--config f:3: layer-split says a second time what a flag is");
  // The first mistake of a file is told, not that of the first name.
  EXPECT_EQ(parse("zzz = 1\naaa = 2\n", {"plan", "m"}).rfind("--config f:1: zzz", 0), 0u);
}

TEST_F(ConfigFileTest, TheCommandLineWins) {
  EXPECT_EQ(parse("model = 'x'\nport = 1\nserved-model-name = ['a']\n",
                  {"serve", "m", "--port=2", "--served-model-name="}),
            "");
  EXPECT_EQ(values().model, "m");
  EXPECT_EQ(values().port, 2);
  EXPECT_EQ(values().names, Words{""});
}

TEST_F(ConfigFileTest, IniLinesAreTakenAsTheyAre) {
  EXPECT_EQ(
      parse("; one\r\n# two\r\nsplit=20,10\r\n\r\n[serve]\r\nmodel = a;b #c\r\nserved-model-name = ' x '\r\n"
            "endpoint-file =\r\njson=true\r\n[ bench.load ]\r\nrequest-rate=1\r\n",
            {"serve"},
            "ini"),
      "");
  EXPECT_EQ(values().model, "a;b #c");
  EXPECT_EQ(values().names, Words{" x "});
  EXPECT_EQ(values().endpoint, "");
  EXPECT_EQ(values().split, (std::vector<int>{20, 10}));
  EXPECT_TRUE(values().json);
  EXPECT_EQ(parse("port=1\n[serve\n", {"serve", "m"}, "ini"), "--config f:2: [serve is no [section]");
  EXPECT_EQ(parse("\njson\n", {"serve", "m"}, "ini"), "--config f:2: json is no key = value");
  EXPECT_EQ(parse("split=[1,2]\n", {"serve", "m"}, "ini"),
            "--config f:1: split: lists are for TOML, in a file of another name");
  EXPECT_EQ(parse("[]\n", {"serve", "m"}, "ini"), "--config f:1: [] is no [section]");
}

TEST(EmptyValues, TheNextWordIsNoValue) {
  Program program;
  EXPECT_EQ(program.parse({"serve", "m", "--endpoint-file=", "--served-model-name=x", "--no-ahead"}), "");
  EXPECT_EQ(program.values.endpoint, "");
  EXPECT_EQ(program.values.names, Words{"x"});
  EXPECT_FALSE(program.values.ahead);
}

TEST(EmptyValues, AreRefusedWhereTheyAreNone) {
  for (const char* flag : {"--port", "--share", "--split", "--json", "--no-ahead", "--api-key-file"}) {
    std::string said = Program().parse({"serve", "m", std::string(flag) + "=", "--served-model-name=x"});
    EXPECT_TRUE(said.ends_with(": its value is empty")) << flag << ": " << said;
  }
  EXPECT_EQ(Program().parse({"serve", "m", "--port", ""}), "--port: its value is empty");
  EXPECT_EQ(Program().parse({"serve", "m", "--config="}), "--config: its value is empty");
}

TEST(EmptyValues, OtherWordsStayAsTheyAre) {
  Program program;
  const Words words = {"serve", "a=", "--nothing=", "--port=1", "--json=", "-p=", "--", "--port="};
  EXPECT_EQ(with_empty_values(program.app, words), words);
  EXPECT_EQ(with_empty_values(program.app, {"bench", "latency", "--input-len="}),
            (Words{"bench", "latency", "--input-len", ""}));
}

}  // namespace
}  // namespace llm_dist::launch
