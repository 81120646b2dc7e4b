#include "src/base/type_name.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <typeinfo>

namespace llm_dist {

std::string type_name(const std::exception& exception) {
  const char* mangled = typeid(exception).name();
  int failed = 0;
  std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(mangled, nullptr, nullptr, &failed),
                                              std::free);
  return failed == 0 ? name.get() : mangled;
}

}  // namespace llm_dist
