// `llm-dist convert`: any checkpoint as a Hugging Face directory of dense weights.
#include "src/checkpoint/convert.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "launch/commands.h"
#include "launch/flags.h"
#include "launch/text_model.h"

namespace llm_dist::launch {
namespace {

struct ConvertFlags {
  std::string model;
  std::string directory;
  std::string dtype = "bfloat16";
};

Status convert(const ConvertFlags& flags) {
  ASSIGN_OR_RETURN(DType dtype, parse_dtype("--dtype", flags.dtype));
  ASSIGN_OR_RETURN(auto checkpoint, checkpoint::Checkpoint::open(flags.model));
  ASSIGN_OR_RETURN(const std::string tokenizer_json, tokenizer_json_of(checkpoint->tokenizer()));
  RETURN_IF_ERROR(checkpoint::convert_to_hf(*checkpoint, tokenizer_json, flags.directory, dtype));
  std::printf("%s holds %s as %s\n", flags.directory.c_str(), flags.model.c_str(), flags.dtype.c_str());
  return ok_status();
}

}  // namespace

RunCommand add_convert(CLI::App& program) {
  auto flags = std::make_shared<ConvertFlags>();
  CLI::App* app = program.add_subcommand("convert", "Write a model as a Hugging Face directory");
  app->add_option("model", flags->model, "Directory with config.json and *.safetensors, or a .gguf file")
      ->required()
      ->type_name("MODEL");
  app->add_option("directory", flags->directory, "Where to write; made where it is missing")
      ->required()
      ->type_name("DIR");
  app->add_option("--dtype", flags->dtype, "Of every weight: bfloat16, float16, float32")
      ->capture_default_str();
  app->footer("Example:\n  llm-dist convert model.gguf path/to/model-bf16 --dtype bfloat16");
  return [flags] {
    Status status = convert(*flags);
    if (!status.ok()) std::fprintf(stderr, "llm-dist: %s\n", status.message().c_str());
    return status.ok() ? 0 : 1;
  };
}

}  // namespace llm_dist::launch
