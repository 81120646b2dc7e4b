#include "kernels/cuda/matmul_choices.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "src/base/fnv1a.h"
#include "src/base/format.h"

namespace llm_dist::kernels {
namespace {

constexpr const char* kHeader = "llm-dist matmul choices 3";
constexpr const char* kFooter = "end";

// The environment itself stands inside.
std::string file_name(const std::string& environment) {
  std::ostringstream name;
  name << "matmul-" << std::hex << fnv1a(environment) << ".txt";
  return name.str();
}

void write_line(std::ostream& out, const MatmulShape& shape, const MatmulChoices::Algorithm& algorithm) {
  out << std::dec << shape.m << ' ' << shape.n << ' ' << shape.k << ' ' << shape.x_stride << ' '
      << shape.y_stride << ' ' << static_cast<int>(shape.in) << ' ' << static_cast<int>(shape.out) << ' '
      << shape.has_bias << ' ' << shape.f8_weight << ' ' << shape.gated << ' ' << shape.alignment << std::hex;
  for (uint64_t word : algorithm) out << ' ' << word;
  out << '\n';
}

bool read_line(const std::string& line, MatmulShape& shape, MatmulChoices::Algorithm& algorithm) {
  std::istringstream in(line);
  int dtype_in = 0;
  int dtype_out = 0;
  in >> shape.m >> shape.n >> shape.k >> shape.x_stride >> shape.y_stride >> dtype_in >> dtype_out >>
      shape.has_bias >> shape.f8_weight >> shape.gated >> shape.alignment >> std::hex;
  for (uint64_t& word : algorithm) in >> word;
  shape.in = static_cast<DType>(dtype_in);
  shape.out = static_cast<DType>(dtype_out);
  std::string more;
  return !in.fail() && !(in >> more);
}

}  // namespace

MatmulChoices::MatmulChoices(std::string folder, std::string environment)
    : folder_(std::move(folder)), environment_(std::move(environment)) {
  if (!folder_.empty()) path_ = folder_ + "/" + file_name(environment_);
}

Result<MatmulChoices::Map> MatmulChoices::read() const {
  Map found;
  std::ifstream file(path_);
  if (path_.empty() || !file) return found;
  std::string line;
  if (!std::getline(file, line) || line != kHeader)
    return data_loss(format("{} is of another version", path_));
  if (!std::getline(file, line) || line != environment_)
    return data_loss(format("{} is of another machine", path_));
  while (std::getline(file, line) && line != kFooter) {
    MatmulShape shape;
    Algorithm algorithm{};
    if (!read_line(line, shape, algorithm)) return data_loss(format("{} is damaged: {}", path_, line));
    found[shape] = algorithm;
  }
  if (line != kFooter) return data_loss(format("{} is cut short", path_));
  return found;
}

Status MatmulChoices::load() {
  ASSIGN_OR_RETURN(Map found, read());
  choices_.merge(found);
  return ok_status();
}

Status MatmulChoices::save() {
  if (!changed_ || path_.empty()) return ok_status();
  if (Result<Map> others = read(); others.ok()) choices_.merge(others.value());
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  // Ranks write at the same time, threads of one process and processes of hosts that share the folder among
  // them: each to a file of its own.
  std::random_device draw;
  std::string part = format("{}.{}.{}.part", path_, draw(), draw());
  std::ofstream file(part);
  file << kHeader << '\n' << environment_ << '\n';
  for (const auto& [shape, algorithm] : choices_) write_line(file, shape, algorithm);
  file << kFooter << '\n';
  file.close();
  if (file) std::filesystem::rename(part, path_, error);
  if (file && !error) {
    changed_ = false;
    return ok_status();
  }
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  return unavailable(format("{}: {}", path_, error ? error.message() : "cannot be written"));
}

const MatmulChoices::Algorithm* MatmulChoices::find(const MatmulShape& shape) const {
  auto found = choices_.find(shape);
  return found == choices_.end() ? nullptr : &found->second;
}

const MatmulChoices::Algorithm* MatmulChoices::find_near(const MatmulShape& shape) const {
  MatmulShape near = shape;
  while (++near.m < shape.m + kNear) {
    if (const Algorithm* found = find(near)) return found;
  }
  return nullptr;
}

void MatmulChoices::add(const MatmulShape& shape, const Algorithm& algorithm) {
  choices_[shape] = algorithm;
  changed_ = true;
}

}  // namespace llm_dist::kernels
