// The contents of files, beside the database: each one file under a name that is never used twice. A content
// comes first and the row that names it second; a content that no row names is rubbish.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/http/body.h"

namespace llm_dist::cluster {

// One content that is being written. Gone again unless it is kept.
class ContentWriter {
 public:
  // resource_exhausted: the disk is full, here as below.
  static Result<std::unique_ptr<ContentWriter>> create(const std::string& folder);
  ~ContentWriter();
  ContentWriter(const ContentWriter&) = delete;
  ContentWriter& operator=(const ContentWriter&) = delete;

  Status write(std::string_view bytes);
  // Durable when it returns: the file and its entry in the folder are synced.
  Status finish();
  // After finish(): a row names it.
  void keep() { kept_ = true; }
  const std::string& name() const { return name_; }
  int64_t bytes() const { return bytes_; }

 private:
  ContentWriter(std::string folder, std::string name, int file)
      : folder_(std::move(folder)), name_(std::move(name)), file_(file) {}
  Status write_out(std::string_view bytes);

  const std::string folder_;
  const std::string name_;
  int file_;
  std::string buffer_;
  int64_t bytes_ = 0;
  bool kept_ = false;
};

class FileContents {
 public:
  explicit FileContents(std::string folder) : folder_(std::move(folder)) {}

  // Makes the folder (mode 0700) where it is missing, durably.
  Status prepare() const;
  Result<std::unique_ptr<ContentWriter>> create() const { return ContentWriter::create(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  // All of it, also when it is removed meanwhile. data_loss: it cannot be read.
  Result<std::shared_ptr<http::BodySource>> open(const std::string& name) const;
  // What the disk has room for. unavailable: nobody knows.
  Result<uint64_t> free_bytes() const;
  void remove(const std::string& name) const;
  // Removes what is not among `known`: what a crash left between content and row. Nobody may be writing.
  int sweep(const std::vector<std::string>& known) const;

 private:
  const std::string folder_;
};

}  // namespace llm_dist::cluster
