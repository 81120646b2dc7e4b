// The flags that the administrator's file may have, in every spelling.
#include "cluster/catalogue.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster {
namespace {

using Words = std::vector<std::string>;

class CatalogueArguments : public ::testing::Test {
 protected:
  Result<Words> read(const Words& arguments) {
    nlohmann::json root;
    root["models"]["m"] = {{"path", "m.gguf"}, {"arguments", arguments}};
    std::ofstream(folder_.file("c.json")) << root.dump();
    ASSIGN_OR_RETURN(Catalogue catalogue, Catalogue::read(folder_.file("c.json"), names_));
    ASSIGN_OR_RETURN(CatalogueModel model, catalogue.find("m"));
    return model.arguments;
  }

  testing::TemporaryFolder folder_;
  FlagNames names_{{{"--tp", "-tp"},
                    {"--tp", "--tp-size", "--tensor-parallel-size"},
                    {"--input-len", "--random-input-len"}}};
};

TEST_F(CatalogueArguments, WhatIsTheCoordinatorsToSayIsRefused) {
  for (const Words& words : {Words{"--tp", "2"},
                             Words{"--tp=1"},
                             Words{"-tp", "2"},
                             Words{"--threads", "1", "--tensor-parallel-size", "2"},
                             Words{"--tp-size=2"},
                             Words{"--pp", "2"},
                             Words{"--layout", "2x1"},
                             Words{"--nproc-per-node=2"},
                             Words{"--port", "80"},
                             Words{"--served-model-name", "x"},
                             Words{"--shutdown-timeout", "9"},
                             Words{"--save-result", "f"},
                             Words{"--progress-file", "f"},
                             Words{"--api-key-file", "f"}}) {
    const std::string& flag = words.size() > 2 ? words[2] : words[0];
    Status status = read(words).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << flag;
    EXPECT_NE(status.message().find("model 'm': 'arguments': '" + flag + "'"), std::string::npos)
        << status.message();
  }
  EXPECT_NE(read({"--tp-size", "2"}).status().message().find("comes from the job"), std::string::npos);
}

TEST_F(CatalogueArguments, TheOthersHaveTheirFirstNames) {
  EXPECT_EQ(
      read({"--random-input-len", "7", "--random-input-len=8", "--no-enable-chunked-prefill", "-1"}).value(),
      (Words{"--input-len", "7", "--input-len=8", "--no-enable-chunked-prefill", "-1"}));
}

TEST(OwnFlags, AreAllRefused) {
  for (OwnFlag flag : {OwnFlag::kTp,
                       OwnFlag::kPp,
                       OwnFlag::kPort,
                       OwnFlag::kServedModelName,
                       OwnFlag::kShutdownTimeout,
                       OwnFlag::kSaveResult,
                       OwnFlag::kProgressFile}) {
    EXPECT_FALSE(refuse_own_flag(name_of(flag)).ok()) << name_of(flag);
  }
  EXPECT_EQ(name_of(OwnFlag::kProgressFile), "--progress-file");
}

}  // namespace
}  // namespace llm_dist::cluster
