// /v1/files over HTTP, and the multipart bodies that it reads.
#include "cluster/api/files_api.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "cluster/api/multipart.h"
#include "tests/cluster/batch_fixture.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::json;
using namespace std::string_literals;

std::string part(const std::string& disposition, const std::string& content) {
  return "--b\r\nContent-Disposition: form-data; " + disposition + "\r\n\r\n" + content + "\r\n";
}

TEST(Multipart, ReadsTheParts) {
  std::string body = "preamble\r\n" + part("name=\"purpose\"", "batch") +
                     part("name=\"file\"; filename=\"a \\\"b\\\"; c.jsonl\"", "line\r\n--bx\r\n\r\nmore") +
                     part("name=empty", "") + "--b--\r\nepilogue";
  auto parts = parse_multipart("multipart/form-data; charset=utf-8; boundary=\"b\"", body);
  ASSERT_TRUE(parts.ok()) << parts.status().to_string();
  ASSERT_EQ(parts.value().size(), 3u);
  EXPECT_EQ(parts.value()[0].name, "purpose");
  EXPECT_EQ(parts.value()[0].content, "batch");
  EXPECT_FALSE(parts.value()[0].filename.has_value());
  EXPECT_EQ(parts.value()[1].filename, "a \"b\"; c.jsonl");
  EXPECT_EQ(parts.value()[1].content, "line\r\n--bx\r\n\r\nmore") << "another boundary is content";
  EXPECT_EQ(parts.value()[2].name, "empty");
  EXPECT_EQ(parts.value()[2].content, "");
}

TEST(Multipart, RefusesWhatIsNone) {
  const std::string good = part("name=\"a\"", "x") + "--b--\r\n";
  const std::string type = "multipart/form-data; boundary=b";
  ASSERT_TRUE(parse_multipart(type, good).ok());
  for (const char* bad : {"",
                          "application/json",
                          "multipart/form-data",
                          "multipart/form-data; boundary=",
                          "multipart/mixed; boundary=b",
                          "multipart/form-data; boundary"}) {
    EXPECT_FALSE(parse_multipart(bad, good).ok()) << bad;
  }
  std::string many;
  for (int i = 0; i < 40; ++i) many += part("name=\"a\"", "x");
  for (const std::string& bad : {std::string(),
                                 std::string("--b"),
                                 std::string("--b\r\n"),
                                 part("name=\"a\"", "x"),
                                 std::string("--b\r\n\r\nx\r\n--b--"),
                                 part("filename=\"a\"", "x") + "--b--",
                                 many + "--b--",
                                 std::string("--b\r\n--b--\r\n"),
                                 std::string("--b\r\nno header\r\n--b--\r\n")}) {
    EXPECT_FALSE(parse_multipart(type, bad).ok()) << bad;
  }
  // Cut anywhere before its last boundary, it is none.
  for (size_t size = 0; size < good.size() - 4; ++size) {
    EXPECT_FALSE(parse_multipart(type, good.substr(0, size)).ok()) << size;
  }
}

TEST(FileContents, WhatIsNotKeptIsGone) {
  testing::TemporaryFolder folder;
  FileContents contents(folder.file("files"));
  ASSERT_TRUE(contents.prepare().ok());
  struct stat about{};
  ASSERT_EQ(stat(folder.file("files").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0700u);
  std::string kept;
  std::string dropped;
  {
    auto writer = std::move(contents.create()).value();
    auto other = std::move(contents.create()).value();
    std::string bytes(200'000, 'x');
    ASSERT_TRUE(writer->write(bytes).ok());
    ASSERT_TRUE(writer->write("end").ok());
    ASSERT_TRUE(other->write("whole, and no row names it").ok());
    ASSERT_TRUE(other->finish().ok());
    ASSERT_TRUE(writer->finish().ok());
    writer->keep();
    EXPECT_EQ(writer->bytes(), 200'003);
    kept = writer->name();
    dropped = other->name();
  }
  EXPECT_EQ(contents.read(kept).value().size(), 200'003u);
  EXPECT_EQ(contents.read(dropped).status().code(), StatusCode::kDataLoss);
  std::ofstream(contents.path("rubbish")) << "x";
  EXPECT_EQ(contents.sweep({kept}), 1);
  EXPECT_TRUE(contents.read(kept).ok());
}

class FilesApiTest : public testing::BatchFixture {};

TEST_F(FilesApiTest, UploadGetContentDelete) {
  std::string content = "{\"a\":1}\r\n\0binary"s + std::string(70'000, 'y');
  Reply made = upload(content);
  ASSERT_EQ(made.status, 200) << made.text;
  EXPECT_EQ(made.body["id"], "file-1");
  EXPECT_EQ(made.body["object"], "file");
  EXPECT_EQ(made.body["bytes"], content.size());
  EXPECT_EQ(made.body["filename"], "in.jsonl");
  EXPECT_EQ(made.body["purpose"], "batch");
  EXPECT_TRUE(made.body["created_at"].is_number_integer());
  EXPECT_EQ(send("GET", "/v1/files/file-1").body, made.body);
  EXPECT_EQ(send("GET", "/v1/files/file-1/content").text, content);
  restart();
  EXPECT_EQ(send("GET", "/v1/files/file-1/content").text, content);
  EXPECT_EQ(send("DELETE", "/v1/files/file-1").body,
            json::parse(R"({"id":"file-1","object":"file","deleted":true})"));
  for (const char* path :
       {"/v1/files/file-1", "/v1/files/file-1/content", "/v1/files/file-01", "/v1/files/..%2f"}) {
    EXPECT_EQ(send("GET", path).status, 404) << path;
  }
  EXPECT_EQ(send("DELETE", "/v1/files/file-1").status, 404);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.file("files")));
  EXPECT_EQ(upload("x").body["id"], "file-2") << "ids are not used again";
}

TEST_F(FilesApiTest, BadUploadsNameTheField) {
  auto form = [&](const std::string& parts) {
    return send(
        "POST", "/v1/files", parts + "--b--\r\n", {{"Content-Type", "multipart/form-data; boundary=b"}});
  };
  std::string file = part("name=\"file\"; filename=\"f\"", "x");
  std::string purpose = part("name=\"purpose\"", "batch");
  EXPECT_EQ(form(file + purpose).status, 200);
  const std::pair<std::string, const char*> kBad[] = {
      {file, "purpose"},
      {file + part("name=\"purpose\"", "fine-tune"), "purpose"},
      {purpose, "file"},
      {purpose + part("name=\"file\"", "x"), "file"},
      {purpose + file + part("name=\"purpse\"", "x"), "purpse"},
      {purpose + file + part("name=\"expires_after[seconds]\"", "3600"), "expires_after[seconds]"},
  };
  for (const auto& [parts, param] : kBad) {
    Reply reply = form(parts);
    EXPECT_EQ(reply.status, 400) << parts;
    EXPECT_EQ(reply.body["error"]["param"], param) << reply.text;
  }
  EXPECT_EQ(send("POST", "/v1/files", "{}", {{"Content-Type", "application/json"}}).status, 400);
  EXPECT_EQ(send("POST", "/v1/files", "").status, 400);
  EXPECT_EQ(upload(std::string(100'001, 'x')).status, 413);
  EXPECT_EQ(upload(std::string(100'000, 'x')).status, 200);
  EXPECT_EQ(send("GET", "/v1/files").body["data"].size(), 2u);
  EXPECT_EQ(num_contents(), 2);
}

TEST_F(FilesApiTest, AnUploadThatCannotBeWrittenLeavesNothing) {
  {
    testing::FullDisk full(50'000);
    Reply refused = upload(std::string(80'000, 'x'));
    EXPECT_EQ(refused.status, 503) << refused.text;
    EXPECT_NE(refused.headers.find("Retry-After"), nullptr);
  }
  EXPECT_EQ(num_contents(), 0);
  EXPECT_EQ(upload(std::string(80'000, 'x')).body["id"], "file-1");
}

TEST_F(FilesApiTest, ListsFilterAndPage) {
  for (int i = 0; i < 4; ++i) ASSERT_EQ(upload("x").status, 200);
  Reply page = send("GET", "/v1/files?limit=3");
  EXPECT_EQ(page.body["data"][0]["id"], "file-4");
  EXPECT_EQ(page.body["has_more"], true);
  EXPECT_EQ(page.body["first_id"], "file-4");
  EXPECT_EQ(page.body["last_id"], "file-2");
  page = send("GET", "/v1/files?limit=3&after=file-2");
  EXPECT_EQ(page.body["data"].size(), 1u);
  EXPECT_EQ(page.body["has_more"], false);
  EXPECT_EQ(send("GET", "/v1/files?order=asc").body["data"][0]["id"], "file-1");
  EXPECT_EQ(send("GET", "/v1/files?purpose=batch_output").body["data"].size(), 0u);
  EXPECT_EQ(send("GET", "/v1/files", "", {{"OpenAI-Project", "other"}}).body["data"].size(), 0u);
  EXPECT_EQ(send("GET", "/v1/files", "", {{"OpenAI-Project", "default"}}).body["data"].size(), 4u);
  for (const char* bad : {"limit=0", "limit=10001", "order=up", "purpose=vision", "after=4"}) {
    EXPECT_EQ(send("GET", std::string("/v1/files?") + bad).status, 400) << bad;
  }
}

TEST_F(FilesApiTest, WhatACrashLeftIsSwept) {
  ASSERT_EQ(upload("kept").status, 200);
  std::ofstream(folder_.file("files") + "/0123456789abcdef") << "no row names it";
  restart();
  EXPECT_EQ(num_contents(), 1);
  EXPECT_EQ(send("GET", "/v1/files/file-1/content").text, "kept");
}

}  // namespace
}  // namespace llm_dist::cluster
