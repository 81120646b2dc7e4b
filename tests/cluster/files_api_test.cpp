// /v1/files over HTTP, and the multipart bodies that it reads.
#include "cluster/api/files_api.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "cluster/api/multipart.h"
#include "tests/cluster/batch_fixture.h"
#include "tests/cluster/file_text.h"
#include "tests/http/raw_client.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::json;
using namespace std::string_literals;

std::string part(const std::string& disposition, const std::string& content) {
  return "--b\r\nContent-Disposition: form-data; " + disposition + "\r\n\r\n" + content + "\r\n";
}

struct ReadPart {
  FormPart head;
  std::string content;
};

// Fed in pieces of so many bytes.
Result<std::vector<ReadPart>> read_form(const std::string& type,
                                        const std::string& body,
                                        size_t piece_bytes) {
  std::vector<ReadPart> parts;
  auto on_part = [&](FormPart head) {
    parts.push_back({std::move(head), ""});
    return ok_status();
  };
  auto on_content = [&](std::string_view content) {
    parts.back().content += content;
    return ok_status();
  };
  ASSIGN_OR_RETURN(MultipartParser parser, MultipartParser::create(type, on_part, on_content));
  for (size_t at = 0; at < body.size(); at += piece_bytes) {
    RETURN_IF_ERROR(parser.feed(std::string_view(body).substr(at, piece_bytes)));
  }
  RETURN_IF_ERROR(parser.finish());
  return parts;
}

constexpr size_t kPieces[] = {1, 2, 3, 5, 17, 1 << 20};

TEST(Multipart, ReadsThePartsHoweverTheyAreCut) {
  std::string body =
      "preamble\r\n" + part("name=\"purpose\"", "batch") +
      part("name=\"file\"; filename=\"a \\\"b\\\"; c.jsonl\"", "line\r\n--bx\r\n\r\n--more\r\n-") +
      part("name=empty", "") + "--b--\r\nepilogue\r\n--b\r\n";
  for (size_t piece : kPieces) {
    auto parts = read_form("multipart/form-data; charset=utf-8; boundary=\"b\"", body, piece);
    ASSERT_TRUE(parts.ok()) << parts.status().to_string();
    ASSERT_EQ(parts.value().size(), 3u) << piece;
    EXPECT_EQ(parts.value()[0].head.name, "purpose");
    EXPECT_EQ(parts.value()[0].content, "batch");
    EXPECT_FALSE(parts.value()[0].head.filename.has_value());
    EXPECT_EQ(parts.value()[1].head.filename, "a \"b\"; c.jsonl");
    EXPECT_EQ(parts.value()[1].content, "line\r\n--bx\r\n\r\n--more\r\n-") << "another boundary is content";
    EXPECT_EQ(parts.value()[2].head.name, "empty");
    EXPECT_EQ(parts.value()[2].content, "");
  }
}

// A content is handed over as it comes: what is held back may be the begin of a boundary.
TEST(Multipart, HoldsBackNoMoreThanABoundary) {
  size_t given = 0;
  auto parser = MultipartParser::create(
      "multipart/form-data; boundary=b",
      [](const FormPart&) { return ok_status(); },
      [&](std::string_view content) {
        given += content.size();
        return ok_status();
      });
  ASSERT_TRUE(parser.value().feed("--b\r\nContent-Disposition: form-data; name=a\r\n\r\n").ok());
  for (int i = 1; i <= 100; ++i) {
    ASSERT_TRUE(parser.value().feed(std::string(1000, '\r')).ok());
    EXPECT_GE(given + 5, i * 1000u);
  }
}

TEST(Multipart, RefusesWhatIsNone) {
  const std::string good = part("name=\"a\"", "x") + "--b--\r\n";
  const std::string type = "multipart/form-data; boundary=b";
  ASSERT_TRUE(read_form(type, good, 1).ok());
  for (const char* bad : {"",
                          "application/json",
                          "multipart/form-data",
                          "multipart/form-data; boundary=",
                          "multipart/mixed; boundary=b",
                          "multipart/form-data; boundary"}) {
    EXPECT_FALSE(read_form(bad, good, 1).ok()) << bad;
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
                                 std::string("--b\r\nno header\r\n--b--\r\n"),
                                 "--b\r\nX: y\r\n" + good,
                                 "--b" + std::string(2000, ' ') + "\r\n" + good.substr(5),
                                 "--b\r\nX: " + std::string(9000, 'y') + "\r\n" + good.substr(5)}) {
    std::string message = read_form(type, bad, 1).status().message();
    for (size_t piece : kPieces) {
      auto parts = read_form(type, bad, piece);
      EXPECT_FALSE(parts.ok()) << bad;
      EXPECT_EQ(parts.status().message(), message) << bad;
    }
  }
  // Cut anywhere before its last boundary, it is none.
  for (size_t size = 0; size < good.size() - 4; ++size) {
    EXPECT_FALSE(read_form(type, good.substr(0, size), 1).ok()) << size;
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
  EXPECT_EQ(testing::text_of(contents, kept).value().size(), 200'003u);
  EXPECT_EQ(contents.open(dropped).status().code(), StatusCode::kDataLoss);
  std::ofstream(contents.path("rubbish")) << "x";
  EXPECT_EQ(contents.sweep({kept}), 1);
  // Who reads it goes on when it is removed; what is shorter than it was does not look whole.
  auto source = std::move(contents.open(kept)).value();
  auto other = std::move(contents.open(kept)).value();
  contents.remove(kept);
  std::string bytes(200'003, '\0');
  EXPECT_TRUE(source->read(bytes).ok());
  EXPECT_EQ(bytes, std::string(200'000, 'x') + "end");
  EXPECT_EQ(contents.open(kept).status().code(), StatusCode::kDataLoss);
  bytes.resize(200'004);
  EXPECT_EQ(other->read(bytes).code(), StatusCode::kDataLoss);
  EXPECT_GT(contents.free_bytes().value(), 0u);
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
      {purpose + file + purpose, "purpose"},
      {file + purpose + file, "file"},
      {part("name=\"purpose\"", "batch" + std::string(100'000, 'x')) + file, "purpose"},
      {purpose + file + part("name=\"expires_after[seconds]\"", "3600"), "expires_after[seconds]"},
  };
  for (const auto& [parts, param] : kBad) {
    Reply reply = form(parts);
    EXPECT_EQ(reply.status, 400) << parts;
    EXPECT_EQ(reply.body["error"]["param"], param) << reply.text;
  }
  EXPECT_EQ(send("POST", "/v1/files", "{}", {{"Content-Type", "application/json"}}).status, 400);
  EXPECT_EQ(send("POST", "/v1/files", "").status, 400);
  Reply large = upload(std::string(100'001, 'x'));
  EXPECT_EQ(large.status, 413);
  EXPECT_EQ(large.body["error"]["param"], "file");
  EXPECT_EQ(upload(std::string(1'000'000, 'x')).status, 413);
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
  EXPECT_TRUE(
      http::eventually([&] { return num_contents() == 0; }));  // another thread's work, after the reply
  EXPECT_EQ(upload(std::string(80'000, 'x')).body["id"], "file-1");
}

// Whatever ends it, an upload that is not stored leaves no content behind.
TEST_F(FilesApiTest, AClientThatGoesAwayLeavesNothing) {
  std::string form =
      part("name=\"purpose\"", "batch") + part("name=\"file\"; filename=\"f\"", std::string(90'000, 'x'));
  auto admitted = files_->admit({.method = "POST",
                                 .path = "/v1/files",
                                 .headers = {{"Content-Type", "multipart/form-data; boundary=b"}}});
  ASSERT_NE(admitted.sink, nullptr);
  EXPECT_EQ(num_contents(), 0) << "nothing was sent yet";
  EXPECT_TRUE(admitted.sink->write(form));
  EXPECT_EQ(num_contents(), 1) << "it goes to the disk as it comes";
  EXPECT_TRUE(admitted.sink->write(form.substr(0, 20)));
  admitted.sink.reset();
  EXPECT_EQ(num_contents(), 0);
  EXPECT_EQ(send("GET", "/v1/files").body["data"].size(), 0u);
}

TEST_F(FilesApiTest, WhatCannotBeStoredIsRefusedBeforeItComes) {
  FilesApi files({.store = *store_,
                  .commit = *commit_,
                  .workers = *workers_,
                  .contents = contents_,
                  .max_file_bytes = int64_t{1} << 60});
  auto admit = [&](int64_t bytes, const char* type, const std::string& project = "p") {
    return files.admit({.method = "POST",
                        .path = "/v1/files",
                        .headers = {{"Content-Type", type},
                                    {"Content-Length", std::to_string(bytes)},
                                    {"OpenAI-Project", project}}});
  };
  const char* form = "multipart/form-data; boundary=b";
  EXPECT_FALSE(admit(1000, form).refusal.has_value());
  ASSERT_TRUE(admit(int64_t{1} << 59, form).refusal.has_value()) << "no disk has so much room";
  EXPECT_EQ(admit(int64_t{1} << 59, form).refusal->status, 503);
  EXPECT_EQ(admit(1000, "application/json").refusal->status, 400);
  EXPECT_EQ(admit(1000, form, std::string(65, 'p')).refusal->status, 400);
  EXPECT_EQ(admit(1000, form).max_body_bytes, (uint64_t{1} << 60) + (64 << 10));
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
